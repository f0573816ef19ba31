// The three paths of half precision as matrix products on tensor cores, for rows of 16, 32, 48 or 64 steps.
//
// The idea
//   For one channel, y = x T: x is samples by steps, and T the Toeplitz matrix T[s][t] = k[t - s], zero below
//   its diagonal. The input gradient is gy T', and the weight gradient has the sums along the diagonals of
//   G = x' gy. In half precision the bytes are half as many, and multiply-adds in float32 would take twice as
//   long as they do; tensor cores multiply 16 x 16 numbers by 16 x 8 with one instruction, exactly, and add
//   up in float32. What lies wholly in T's zeros is left out. T's own fragments are few: 8 steps along a
//   diagonal nothing changes, so a lane holds one register for each 8 taps.
//
// Threads to data
//   A block has 8 channels, one a warp, and goes through its samples 16 at a time: 16 runs of memory, of 8
//   rows each, which all threads copy to shared memory, the next ones while these are worked on. There a warp
//   has the rows of its channel to itself.
//   forward, input gradient  the results take the place of the rows, and go out as they came in.
//   weight gradient          G stays in registers over a part of the batch, which follows from B alone; at
//                            its end the diagonals are added up.
//
//   A zero of T times NaN is NaN: what is not finite would come out up to 15 steps before it came in. So
//   where a result is not finite, its tile is computed once more without such inputs, and the results that
//   they do reach by definition, one by one.
//
// Cost
//   The compulsory bytes, as in warp_tiled.cu.
#pragma once
#include <cuda_pipeline.h>

#include "toeplitz.cuh"

namespace {
namespace matrix {

constexpr int kWarps = 8;  // and channels of a block
constexpr int kThreads = 32 * kWarps;
constexpr int kSamples = 16;                    // at once
constexpr int kCarriers = kThreads / kSamples;  // threads that copy a sample's run
constexpr int kMostChunks = 4;                  // of a row
constexpr int kRowTiles = 2;                    // of a block, forward and input gradient
constexpr int kStages = 3;                      // of the weight gradient: tiles of gy and x
constexpr int kPartSamples = 344;               // of a part of the batch, weight gradient, and
constexpr int kFewSamples = 32;                 // where there would be few parts,
constexpr int kFewParts = 32;                   // fewer than these
constexpr int kGap = kUnit / sizeof(scalar);    // behind each run: eight of them meet no bank twice
constexpr int kBlocks = 3;                      // that a multiprocessor must have registers for

// How the host laid the work out.
struct Plan {
  int groups;  // of 8 channels
  int stride;  // scalars from sample to sample in shared memory
  int64_t parts;
};

// What a lane has of a fragment: row or column `g`, and elements 2 `t` and 2 `t` + 1 of the other side.
struct Lane {
  int g, t;
};

__device__ Lane own_lane() {
  return {static_cast<int>(threadIdx.x) % 32 / 4, static_cast<int>(threadIdx.x) % 4};
}

using Sums = float[4];     // of a fragment of 16 x 8
using Rows = unsigned[4];  // a fragment of 16 x 16 factors, two to a register

// Two neighbours in memory; a register of a fragment.
struct alignas(2 * sizeof(scalar)) Two {
  scalar low, high;
};

__device__ unsigned bits(Two two) { return *reinterpret_cast<const unsigned*>(&two); }

__device__ bool finite(scalar value) { return fabsf(wide(value)) < INFINITY; }

// c += a b, for a of 16 x 16 and b of 16 x 8.
__device__ void multiply(Sums& c, const Rows& a, unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm(
#if defined(SCALAR_float16)
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#else
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four fragments of 8 x 8 from shared memory: the lanes' addresses are those of the rows, 8 of each in turn.
template <bool kTransposed>
__device__ void load_four(Rows& to, const scalar* row) {
#if __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// Copies 16 samples from `b` on of a block's channels; what lies beyond `end` is zero.
__device__ void fetch(scalar* to, const scalar* from, int64_t b, int64_t end, int h0, int units,
                      const Shape& shape, int stride) {
  const int sample = threadIdx.x / kCarriers;
  const bool inside = b + sample < end;
  const scalar* const run = from + ((inside ? b + sample : 0) * shape.H + h0) * shape.L;
#pragma unroll 4
  for (int u = threadIdx.x % kCarriers; u < units; u += kCarriers) {
    __pipeline_memcpy_async(to + sample * stride + u * kPerUnit, run + u * kPerUnit, kUnit,
                            inside ? 0 : kUnit);
  }
}

// The fragments of T, or of its transpose: of 8 x 8 blocks, for each of T's diagonals of them.
template <Path kPath, int kChunks>
__device__ void load_filter(unsigned (&diagonals)[2 * kChunks], const scalar* k, int taps, Lane lane) {
  const auto tap = [&](int j) { return j >= 0 && j < taps ? k[j] : scalar(0); };
#pragma unroll
  for (int e = 0; e < 2 * kChunks; e++) {
    if constexpr (kPath == Path::kForward) {
      const int j = 8 * e + lane.g - 2 * lane.t;
      diagonals[e] = bits({tap(j), tap(j - 1)});
    } else {
      const int j = 8 * e + 2 * lane.t - lane.g;
      diagonals[e] = bits({tap(j), tap(j + 1)});
    }
  }
}

// The products of 16 samples of a channel, whose rows start `stride` apart, with T or its transpose. Where
// `kFinite`, what is not finite counts as zero.
template <Path kPath, int kChunks, bool kFinite>
__device__ void multiply_rows(Sums (&sums)[2 * kChunks], const scalar* rows, int stride,
                              const unsigned (&diagonals)[2 * kChunks]) {
#pragma unroll
  for (int n = 0; n < 2 * kChunks; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] = 0;
  }
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    Rows a;
    load_four<false>(a, rows + lane % 16 * stride + c * kChunk + lane / 16 * 8);
    if constexpr (kFinite) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Two two = *reinterpret_cast<const Two*>(&a[i]);
        if (!finite(two.low)) two.low = scalar(0);
        if (!finite(two.high)) two.high = scalar(0);
        a[i] = bits(two);
      }
    }
#pragma unroll
    for (int n = 0; n < 2 * kChunks; n++) {  // 8 steps of the result
      if (kPath == Path::kForward && n >= 2 * c) {
        multiply(sums[n], a, diagonals[n - 2 * c], n > 2 * c ? diagonals[n - 2 * c - 1] : 0);
      }
      if (kPath == Path::kInputGrad && n <= 2 * c + 1) {
        multiply(sums[n], a, n <= 2 * c ? diagonals[2 * c - n] : 0, diagonals[2 * c + 1 - n]);
      }
    }
  }
}

// Result t of a row by definition; `reached` where an input was not finite.
template <Path kPath>
__device__ float by_definition(const scalar* row, const scalar* k, int t, const Shape& shape, bool& reached) {
  float sum = 0;
  for (int j = 0; j < shape.taps(); j++) {
    const int s = kPath == Path::kForward ? t - j : t + j;
    if (s < 0 || s >= shape.L) break;
    reached |= !finite(row[s]);
    sum += wide(k[j]) * wide(row[s]);
  }
  return sum;
}

template <Path kPath, int kChunks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    row_kernel(scalar* out, const scalar* in, const scalar* k, Shape shape, Plan plan) {
  extern __shared__ __align__(kUnit) unsigned char memory[];
  const int warp = threadIdx.x / 32, stride = plan.stride;
  const Lane lane = own_lane();
  const int h0 = blockIdx.x % plan.groups * kWarps, channels = min(kWarps, shape.H - h0);
  const int units = channels * shape.L / kPerUnit;
  const int64_t first = static_cast<int64_t>(blockIdx.x / plan.groups) * kRowTiles * kSamples;
  const int64_t end = min(shape.B, first + kRowTiles * kSamples);
  scalar* const tiles = reinterpret_cast<scalar*>(memory);
  fetch(tiles, in, first, end, h0, units, shape, stride);
  __pipeline_commit();
  const scalar* const filter = k + static_cast<int64_t>(h0 + warp) * shape.K;
  unsigned diagonals[2 * kChunks];
  if (warp < channels) load_filter<kPath, kChunks>(diagonals, filter, shape.taps(), lane);
  int stage = 0;
  for (int64_t b = first; b < end; b += kSamples, stage ^= 1) {
    scalar* const tile = tiles + stage * kSamples * stride;
    __pipeline_wait_prior(0);
    __syncthreads();  // the tile is there, and the one before has gone
    if (b + kSamples < end) {
      fetch(tiles + (stage ^ 1) * kSamples * stride, in, b + kSamples, end, h0, units, shape, stride);
    }
    __pipeline_commit();
    if (warp < channels) {
      scalar* const rows = tile + warp * shape.L;
      Sums sums[2 * kChunks];
      multiply_rows<kPath, kChunks, false>(sums, rows, stride, diagonals);
      float zero = 0;
#pragma unroll
      for (int n = 0; n < 2 * kChunks; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) zero += 0 * sums[n][i];
      }
      if (__any_sync(0xffffffffu, zero != 0)) {  // NaN, where one of the sums is not finite
        multiply_rows<kPath, kChunks, true>(sums, rows, stride, diagonals);
#pragma unroll
        for (int n = 0; n < 2 * kChunks; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const scalar* const row = rows + (lane.g + i / 2 * 8) * stride;
            bool reached = false;
            const float sum = by_definition<kPath>(row, filter, 8 * n + 2 * lane.t + i % 2, shape, reached);
            if (reached) sums[n][i] = sum;
          }
        }
      }
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 2 * kChunks; n++) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          scalar* const at = rows + (lane.g + i / 2 * 8) * stride + 8 * n + 2 * lane.t;
          *reinterpret_cast<Two*>(at) = {narrow(sums[n][i]), narrow(sums[n][i + 1])};
        }
      }
    }
    __syncthreads();
    const int sample = threadIdx.x / kCarriers;
    if (b + sample < end) {
      scalar* const run = out + ((b + sample) * shape.H + h0) * shape.L;
#pragma unroll 4
      for (int u = threadIdx.x % kCarriers; u < units; u += kCarriers) {
        __stcs(reinterpret_cast<uint4*>(run + u * kPerUnit),
               *reinterpret_cast<const uint4*>(tile + sample * stride + u * kPerUnit));
      }
    }
  }
}

// A unit is a block's work: a part of the batch, for the channels of one group.
template <int kChunks>
__device__ void sum_unit(accum* partials, const scalar* gy, const scalar* x, Shape shape, Plan plan,
                         int64_t unit, unsigned char* memory) {
  constexpr int kLength = kChunks * kChunk;
  const int warp = threadIdx.x / 32, number = threadIdx.x % 32, stride = plan.stride;
  const Lane lane = own_lane();
  const int h0 = static_cast<int>(unit % plan.groups) * kWarps, channels = min(kWarps, shape.H - h0);
  const int units = channels * shape.L / kPerUnit;
  const int64_t part = unit / plan.groups, step = plan.parts * kSamples;
  scalar* const tiles = reinterpret_cast<scalar*>(memory);
  const auto fetch_both = [&](int64_t b, int stage) {
    scalar* const to = tiles + stage * 2 * kSamples * stride;
    if (b < shape.B) {
      fetch(to, gy, b, shape.B, h0, units, shape, stride);
      fetch(to + kSamples * stride, x, b, shape.B, h0, units, shape, stride);
    }
    __pipeline_commit();
  };
  Sums sums[kChunks][2 * kChunks];  // of G, where it is not below its diagonal
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
#pragma unroll
    for (int n = 0; n < 2 * kChunks; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[c][n][i] = 0;
    }
  }
  const int64_t first = part * kSamples;
  for (int s = 0; s < kStages - 1; s++) fetch_both(first + s * step, s);
  int stage = 0;
  for (int64_t b = first; b < shape.B; b += step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // the tiles are there, and the ones before are done with
    fetch_both(b + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
    if (warp < channels) {
      const scalar* const gradient = tiles + stage * 2 * kSamples * stride + warp * kLength;
      const scalar* const input = gradient + kSamples * stride;
      Rows factors[kChunks];
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        load_four<true>(factors[c], gradient + number % 16 * stride + c * kChunk + number / 16 * 8);
      }
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        Rows a;
        load_four<true>(a, input + (number % 8 + number / 16 * 8) * stride + c * kChunk + number / 8 % 2 * 8);
#pragma unroll
        for (int n = 2 * c; n < 2 * kChunks; n++) {
          multiply(sums[c][n], a, factors[n / 2][n % 2 * 2], factors[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    if (++stage == kStages) stage = 0;
  }
  __syncthreads();
  if (warp >= channels) return;
  // A lane adds up its lags' diagonals, which a chunk of x after the other lie in shared memory.
  constexpr int kPitch = kLength + 1, kLags = (kLength + 31) / 32;
  float* const products = reinterpret_cast<float*>(memory) + warp * kChunk * kPitch;
  float of_lag[kLags] = {};
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    __syncwarp();
#pragma unroll
    for (int n = 2 * c; n < 2 * kChunks; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        products[(lane.g + i / 2 * 8) * kPitch + 8 * n + 2 * lane.t + i % 2] = sums[c][n][i];
      }
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kLags; m++) {
      const int t = c * kChunk + m * 32 + number;  // of the chunk's first step
#pragma unroll
      for (int s = 0; s < kChunk; s++) {
        if (t + s < kLength) of_lag[m] += products[s * kPitch + t + s];
      }
    }
  }
  const int taps = shape.taps();
#pragma unroll
  for (int m = 0; m < kLags; m++) {
    const int j = m * 32 + number;
    if (j < taps) partials[(part * shape.H + h0 + warp) * taps + j] = of_lag[m];
  }
}

template <int kChunks>
__global__ void __launch_bounds__(kThreads, kChunks == kMostChunks ? 2 : kBlocks)
    weight_grad_kernel(accum* partials, const scalar* gy, const scalar* x, Shape shape, Plan plan) {
  extern __shared__ __align__(kUnit) unsigned char memory[];
  for (int64_t unit = blockIdx.x; unit < plan.parts * plan.groups; unit += gridDim.x) {
    sum_unit<kChunks>(partials, gy, x, shape, plan, unit, memory);
    __syncthreads();
  }
}

// -- on the host -----------------------------------------------------------------------------------------

// Whether the paths above are for rows of this length, on this device.
inline bool fits(Shape shape, int device) {
  return shape.L % kChunk == 0 && shape.L <= kMostChunks * kChunk &&
         attribute(cudaDevAttrComputeCapabilityMajor, device) >= 8;
}

inline Plan plan_for(Shape shape, int64_t parts) {
  return {static_cast<int>(ceil_div(shape.H, kWarps)), kWarps * shape.L + kGap, parts};
}

// Parts of the batch in the weight gradient; a small batch is cut finer.
inline int64_t parts_of(int64_t B) {
  return ceil_div(B, B < kFewParts * kPartSamples ? kFewSamples : kPartSamples);
}

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel kernel, const Plan& plan, int tiles, int64_t most_blocks, cudaStream_t stream,
                   Arguments... arguments) {
  const size_t bytes = sizeof(scalar) * tiles * kSamples * plan.stride;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
  const unsigned blocks = grid_size(plan.parts * plan.groups, most_blocks);
  kernel<<<blocks, kThreads, bytes, stream>>>(arguments..., plan);
  return cudaGetLastError();
}

template <Path kPath>
cudaError_t launch_rows(scalar* out, const scalar* in, const scalar* k, Shape shape, cudaStream_t stream) {
  const Plan plan = plan_for(shape, ceil_div(shape.B, kRowTiles * kSamples));
  const auto kernel = shape.L == 16   ? row_kernel<kPath, 1>
                      : shape.L == 32 ? row_kernel<kPath, 2>
                      : shape.L == 48 ? row_kernel<kPath, 3>
                                      : row_kernel<kPath, kMostChunks>;
  return launch(kernel, plan, 2, 0, stream, out, in, k, shape);
}

inline cudaError_t launch_weight_grad(accum* partials, const scalar* gy, const scalar* x, Shape shape,
                                      int64_t most_blocks, cudaStream_t stream) {
  const Plan plan = plan_for(shape, parts_of(shape.B));
  const auto kernel = shape.L == 16   ? weight_grad_kernel<1>
                      : shape.L == 32 ? weight_grad_kernel<2>
                      : shape.L == 48 ? weight_grad_kernel<3>
                                      : weight_grad_kernel<kMostChunks>;
  return launch(kernel, plan, 2 * kStages, most_blocks, stream, partials, gy, x, shape);
}

}  // namespace matrix
}  // namespace
