// The arithmetic of warp_tiled: chunks of 16 numbers in a thread's registers, the 16 x 16 Toeplitz tile that
// multiplies them, and the three walks along a row that add up one chunk of a result.
#pragma once
#include "common.cuh"

namespace {

constexpr int kChunk = 16;
constexpr int kUnit = 16;                         // bytes of the widest access
constexpr int kPerUnit = kUnit / sizeof(scalar);  // scalars in it
constexpr int kAccumPerUnit = kUnit / sizeof(accum);

enum class Path { kForward, kInputGrad, kWeightGrad };

using Chunk = accum[kChunk];

__device__ void clear(Chunk& chunk) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) chunk[i] = 0;
}

__device__ void copy(Chunk& to, const Chunk& from) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) to[i] = from[i];
}

template <typename T>
struct alignas(kUnit) Unit {
  T value[kUnit / sizeof(T)];
};

// Steps [start, start + 16) of a row, all of them inside it.
template <bool kAligned>
__device__ void load(Chunk& chunk, const scalar* row, int start) {
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kChunk; i += kPerUnit) {
      const auto unit = *reinterpret_cast<const Unit<scalar>*>(row + start + i);
#pragma unroll
      for (int u = 0; u < kPerUnit; u++) chunk[i + u] = wide(unit.value[u]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i++) chunk[i] = wide(row[start + i]);
  }
}

// The same at the end of a row of `length`; what lies beyond is zero.
template <bool kAligned>
__device__ void load_end(Chunk& chunk, const scalar* row, int start, int length) {
  if (start + kChunk <= length) {
    load<kAligned>(chunk, row, start);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i++) chunk[i] = start + i < length ? wide(row[start + i]) : accum(0);
  }
}

// The reverse of `load`.
template <bool kAligned>
__device__ void store(scalar* row, int start, int length, const Chunk& chunk) {
  if (kAligned && start + kChunk <= length) {
#pragma unroll
    for (int i = 0; i < kChunk; i += kPerUnit) {
      Unit<scalar> unit;
#pragma unroll
      for (int u = 0; u < kPerUnit; u++) unit.value[u] = narrow(chunk[i + u]);
      *reinterpret_cast<Unit<scalar>*>(row + start + i) = unit;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      if (start + i < length) row[start + i] = narrow(chunk[i]);
    }
  }
}

// Sixteen numbers in shared memory, staged as accum and padded with zeros.
__device__ void load_staged(Chunk& chunk, const accum* from) {
#pragma unroll
  for (int i = 0; i < kChunk; i += kAccumPerUnit) {
    const auto unit = *reinterpret_cast<const Unit<accum>*>(from + i);
#pragma unroll
    for (int u = 0; u < kAccumPerUnit; u++) chunk[i + u] = unit.value[u];
  }
}

// One Toeplitz tile: sums[i] += sum_j factors[j] window[...], where the window is a chunk, `near`, and the
// one beyond it, `far`: before it in time for the forward path and the weight gradient, after it for the
// input gradient. At the end of the row there is no `far`, and its products are left out.
template <Path kPath, bool kWithFar>
__device__ void multiply(Chunk& sums, const Chunk& factors, const Chunk& near, const Chunk& far) {
#pragma unroll
  for (int j = 0; j < kChunk; j++) {
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const int at = kPath == Path::kForward ? i - j : kPath == Path::kInputGrad ? i + j : j - i;
      if (at >= 0 && at < kChunk) {
        sums[i] += factors[j] * near[at];
      } else if (kWithFar) {
        sums[i] += factors[j] * far[at < 0 ? at + kChunk : at - kChunk];
      }
    }
  }
}

// Sixteen taps: staged, or where they are, and zero beyond the last.
template <bool kStaged>
__device__ void load_taps(Chunk& factors, const void* filter, int c, int taps) {
  if constexpr (kStaged) {
    load_staged(factors, static_cast<const accum*>(filter) + c * kChunk);
  } else {
    load_end<false>(factors, static_cast<const scalar*>(filter), c * kChunk, taps);
  }
}

__device__ int chunks_of(int length) { return (length + kChunk - 1) / kChunk; }

// The three walks below meet the end of the row, where a chunk may be cut short, before or after their loop,
// never in it. Lanes that share a row walk different distances; the loop's end brings them together.

// Output chunk `o` of the forward path: from the newest input to the oldest.
template <bool kAligned, bool kStaged>
__device__ void output_chunk(Chunk& sums, const scalar* x, const void* filter, int o, int length, int taps) {
  Chunk factors, near, far;
  clear(sums);
  load_end<kAligned>(near, x, o * kChunk, length);
  const int tap_chunks = chunks_of(taps);
#pragma unroll 1
  for (int c = 0; c < min(o, tap_chunks); c++) {
    load_taps<kStaged>(factors, filter, c, taps);
    load<kAligned>(far, x, (o - c - 1) * kChunk);
    multiply<Path::kForward, true>(sums, factors, near, far);
    copy(near, far);
  }
  if (o < tap_chunks) {
    load_taps<kStaged>(factors, filter, o, taps);
    multiply<Path::kForward, false>(sums, factors, near, near);
  }
}

// Chunk `o` of the input gradient: from the newest gradient to the oldest.
template <bool kAligned, bool kStaged>
__device__ void input_grad_chunk(Chunk& sums, const scalar* gy, const void* filter, int o, int length,
                                 int taps) {
  Chunk factors, near, far;
  clear(sums);
  const int last = chunks_of(length) - 1;
  int c = min(last - o, chunks_of(taps) - 1);
  if (o + c == last) {
    load_taps<kStaged>(factors, filter, c, taps);
    load_end<kAligned>(far, gy, last * kChunk, length);
    multiply<Path::kInputGrad, false>(sums, factors, far, far);
    c--;
  } else {
    load_end<kAligned>(far, gy, (o + c + 1) * kChunk, length);
  }
#pragma unroll 1
  for (; c >= 0; c--) {
    load_taps<kStaged>(factors, filter, c, taps);
    load<kAligned>(near, gy, (o + c) * kChunk);
    multiply<Path::kInputGrad, true>(sums, factors, near, far);
    copy(far, near);
  }
}

// The sums of tap chunk `c` over one sample's row: from the newest gradient to the oldest.
template <bool kAligned>
__device__ void tap_chunk(Chunk& sums, const scalar* gy, const scalar* x, int c, int length) {
  Chunk factors, near, far;
  clear(sums);
  int m = chunks_of(length) - 1 - c;
  load_end<kAligned>(factors, gy, (c + m) * kChunk, length);
  load_end<kAligned>(near, x, m * kChunk, length);
#pragma unroll 1
  for (; m > 0; m--) {
    load<kAligned>(far, x, (m - 1) * kChunk);
    multiply<Path::kWeightGrad, true>(sums, factors, near, far);
    load<kAligned>(factors, gy, (c + m - 1) * kChunk);
    copy(near, far);
  }
  multiply<Path::kWeightGrad, false>(sums, factors, near, near);
}

}  // namespace
