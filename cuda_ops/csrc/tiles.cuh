// The tiles of warp_tiled: neighbouring rows of one sample, copied by one warp between global memory, where
// they are one run, and shared memory.
//
// There, rows lie an odd number of 16-byte units apart, so eight lanes that read 16 bytes of eight rows meet
// no bank twice. Rows whose length in bytes is no multiple of 16 are copied as one run, as they lie in
// memory, and read one number at a time: the pitch is odd again, or twice an odd number.
#pragma once
#include <cuda_pipeline.h>

#include "toeplitz.cuh"

namespace {

// Rows that start on 16 bytes are spread to the pitch; the others are kept as one run.
template <bool kAligned>
__device__ scalar* first_row(unsigned char* buffer, const scalar* global) {
  return reinterpret_cast<scalar*>(buffer + (kAligned ? 0 : reinterpret_cast<uintptr_t>(global) % kUnit));
}

// Calls move(shared, global) for each 16 bytes of a tile that this lane carries, and one(shared, global)
// for each scalar at the ends that does not fill 16 bytes.
template <bool kAligned, typename Move, typename One>
__device__ void for_tile(scalar* shared, int64_t global, int rows, int length, int pitch, int lane, Move move,
                         One one) {
  const int count = rows * length;
  if constexpr (kAligned) {
    const int per_row = length / kPerUnit;
    const unsigned reciprocal = 0xffffffffu / per_row + 1;  // u / per_row = high word of u * this
    const int pad = pitch - length;
    for (int u = lane; u < count / kPerUnit; u += 32) {
      const int row = pad ? __umulhi(u, reciprocal) : 0;
      move(shared + u * kPerUnit + row * pad, global + u * kPerUnit);
    }
  } else {
    const int offset = static_cast<int>(reinterpret_cast<uintptr_t>(shared) % kUnit / sizeof(scalar));
    const int head = min(count, (kPerUnit - offset) % kPerUnit);
    const int units = (count - head) / kPerUnit;
    const int tail = head + units * kPerUnit;
    if (lane < head) one(shared + lane, global + lane);
    for (int u = lane; u < units; u += 32) move(shared + head + u * kPerUnit, global + head + u * kPerUnit);
    if (tail + lane < count) one(shared + tail + lane, global + tail + lane);
  }
}

template <bool kAligned>
__device__ void copy_in(scalar* shared, const scalar* from, int64_t first, int rows, int length, int pitch,
                        int lane) {
  for_tile<kAligned>(
      shared, first, rows, length, pitch, lane,
      [&](scalar* to, int64_t at) { __pipeline_memcpy_async(to, from + at, kUnit); },
      [&](scalar* to, int64_t at) { *to = from[at]; });
}

template <bool kAligned>
__device__ void copy_out(scalar* to, int64_t first, scalar* shared, int rows, int length, int pitch,
                         int lane) {
  for_tile<kAligned>(
      shared, first, rows, length, pitch, lane,
      [&](scalar* at, int64_t g) {
        __stcs(reinterpret_cast<uint4*>(to + g), *reinterpret_cast<const uint4*>(at));
      },
      [&](scalar* at, int64_t g) { to[g] = *at; });
}

}  // namespace
