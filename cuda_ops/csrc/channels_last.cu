// channels_last: the operator on x, y (B, L, H), as the rest of the network has it, both gradients in one
// pass. float32, Hopper.
//
// The idea
//   A sample, (L, H), is one run of memory. One thread starts its copy to shared memory, and no thread
//   carries it. There a thread owns a channel, a column: neighbouring threads read neighbouring words,
//   without padding and without a conflict, and nobody else reads or writes that column. So the result takes
//   the input's place, and goes out as it came in. The arithmetic is warp_tiled's: 16 x 16 Toeplitz tiles in
//   registers, of which the triangle that meets nothing is left out.
//
// Threads to data
//   A block's 256 threads are slots of H threads, each with a sample of its own, the next ones on their way.
//   forward    a slot goes through the batch in steps of the whole grid.
//   gradients  both tensors come in once. For a chunk of 16 steps and each chunk of taps, the gradient in
//              registers serves twice: as factors of the taps' sums and as the window of gx. The taps' sums
//              stay in registers over a part of the batch, up to 64 samples; which ones follows from B alone.
//              A tile's 16 products are added first, which keeps the rounding error near that of one sample.
//              Where x is also what the block adds to its result, that gradient is added here to gx.
//   The last step alone, for the last block: a dot product a channel, and its gradients in one pass.
//
// Cost
//   The compulsory bytes: 4 * 2 B L H forward, 4 * 3 B L H for both gradients, one more B L H with the
//   added one.
#include <algorithm>

#include "bulk.cuh"
#include "toeplitz.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kForwardStages = 3;
constexpr int kPartSamples = 64;   // at most, in a part of the batch
constexpr int kFewestParts = 256;  // where the batch has as many samples: work for every multiprocessor
constexpr int kMostTapChunks = 4;
constexpr int kLastRows = kThreads / 32;  // threads to a channel, last step alone
constexpr int kLastSteps = 8;             // steps of such a thread at once
constexpr int kLastPartSamples = 32;      // of a part of the batch, last step alone
constexpr int kFewestLastParts = 64;      // where the batch has as many samples

// What the copies of a column's tile lie apart, and where its filter lies.
struct Plan {
  int stages;
  int tile;        // scalars of one tile: whole chunks of 16 rows, zero beyond the last step
  unsigned bytes;  // of a sample
};

template <int kH>
__device__ void load_column(Chunk& chunk, const float* column, int start) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) chunk[i] = column[(start + i) * kH];
}

template <int kH>
__device__ void store_column(float* column, int start, int length, const Chunk& chunk) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) {
    if (start + i < length) column[(start + i) * kH] = chunk[i];
  }
}

// The triangle of a Toeplitz tile that meets the neighbouring chunk; `multiply<kPath, false>` is the other.
template <Path kPath>
__device__ void multiply_far(Chunk& sums, const Chunk& factors, const Chunk& far) {
#pragma unroll
  for (int j = 0; j < kChunk; j++) {
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const int at = kPath == Path::kInputGrad ? i + j - kChunk : kPath == Path::kForward ? i - j : j - i;
      if (kPath == Path::kInputGrad ? at >= 0 : at < 0) {
        sums[i] += factors[j] * far[kPath == Path::kInputGrad ? at : at + kChunk];
      }
    }
  }
}

// Zeros behind the last step of each tile, and the filter, transposed and zero behind the last tap. Ends with
// all threads of the block in step.
template <int kH>
__device__ void prepare(float* tiles, int count, float* filter, const float* k, Shape shape, int tile) {
  const int h = threadIdx.x % kH, slot = threadIdx.x / kH, slots = kThreads / kH;
  const int taps = shape.taps(), rows = tile / kH;
  for (int n = slot; n < count; n += slots) {
    for (int t = shape.L; t < rows; t++) tiles[n * tile + t * kH + h] = 0;
  }
#pragma unroll 8
  for (int j = slot; j < chunks_of(taps) * kChunk; j += slots) {
    filter[j * kH + h] = j < taps ? k[static_cast<int64_t>(h) * shape.K + j] : 0.0f;
  }
  fence_for_copies();
  __syncthreads();
}

// Sums that lie in rows of `pitch`, to partial sums in rows of `taps`: neighbouring threads write neighbours.
__device__ void store_partials(float* to, const float* sums, int rows, int taps, int pitch, int thread,
                               int threads) {
  int row = thread / taps, j = thread % taps;
  const int rows_on = threads / taps, taps_on = threads % taps;
  for (int i = thread; i < rows * taps; i += threads) {
    to[i] = sums[row * pitch + j];
    row += rows_on, j += taps_on;
    if (j >= taps) row++, j -= taps;
  }
}

template <int kH>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(float* y, const float* x, const float* k, Shape shape, Plan plan) {
  constexpr int kSlots = kThreads / kH;
  extern __shared__ __align__(128) float memory[];
  __shared__ uint64_t arrived[kSlots][kForwardStages];
  const int slot = threadIdx.x / kH, h = threadIdx.x % kH, stages = plan.stages;
  const bool leader = h == 0;
  const int chunks = chunks_of(shape.L), tap_chunks = chunks_of(shape.taps());
  float* const tiles = memory + slot * stages * plan.tile;
  float* const filter = memory + kSlots * stages * plan.tile;
  const int64_t size = static_cast<int64_t>(shape.L) * kH;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSlots;
  const auto fetch = [&](int64_t b, int stage) {
    if (b < shape.B) {
      barrier_expect(&arrived[slot][stage], plan.bytes);
      bulk_load(tiles + stage * plan.tile, x + b * size, plan.bytes, &arrived[slot][stage]);
    }
  };
  int64_t b = static_cast<int64_t>(blockIdx.x) * kSlots + slot;
  if (leader) {
    for (int s = 0; s < stages; s++) barrier_init(&arrived[slot][s], 1);
    fence_for_copies();
    for (int s = 0; s < max(1, stages - 1); s++) fetch(b + s * step, s);
  }
  prepare<kH>(memory, kSlots * stages, filter, k, shape, plan.tile);
  int stage = 0;
  unsigned parity = 0;
  for (; b < shape.B; b += step) {
    float* const column = tiles + stage * plan.tile + h;
    barrier_wait(&arrived[slot][stage], parity);
    // The latest chunk first: it overwrites the input that only itself and the chunks already done have read.
    for (int o = chunks - 1; o >= 0; o--) {
      Chunk sums, factors, near, far;
      clear(sums);
      load_column<kH>(near, column, o * kChunk);
#pragma unroll 1
      for (int c = 0; c < min(o, tap_chunks); c++) {
        load_column<kH>(factors, filter + h, c * kChunk);
        load_column<kH>(far, column, (o - c - 1) * kChunk);
        multiply<Path::kForward, true>(sums, factors, near, far);
        copy(near, far);
      }
      if (o < tap_chunks) {
        load_column<kH>(factors, filter + h, o * kChunk);
        multiply<Path::kForward, false>(sums, factors, near, near);
      }
      store_column<kH>(column, o * kChunk, shape.L, sums);
    }
    fence_for_copies();
    group_sync<kH>(slot);
    if (leader) {
      bulk_store(y + b * size, tiles + stage * plan.tile, plan.bytes);
      if (stages == 1) {
        bulk_wait_read<0>();
        fetch(b + step, 0);
      } else {  // into the tile before this one, whose own way out began one sample earlier
        bulk_wait_read<1>();
        fetch(b + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
      }
    }
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (leader) bulk_wait_all();
}

template <int kH, int kTapChunks, bool kAdd>
__global__ void __launch_bounds__(kThreads, 1)
    gradients_kernel(float* gx, float* partials, const float* gy, const float* x, const float* k,
                     const float* added, Shape shape, Plan plan, int64_t parts) {
  constexpr int kSlots = kThreads / kH;
  extern __shared__ __align__(128) float memory[];
  __shared__ uint64_t arrived[kSlots][2];
  const int slot = threadIdx.x / kH, h = threadIdx.x % kH, stages = plan.stages;
  const bool leader = h == 0;
  const int chunks = chunks_of(shape.L), taps = shape.taps();
  float* const tiles = memory + slot * stages * 2 * plan.tile;
  float* const filter = memory + kSlots * stages * 2 * plan.tile;
  const int64_t size = static_cast<int64_t>(shape.L) * kH;
  const int64_t part = static_cast<int64_t>(blockIdx.x) * kSlots + slot;
  const auto fetch = [&](int64_t b, int stage) {
    if (b < shape.B) {
      float* const to = tiles + 2 * stage * plan.tile;
      barrier_expect(&arrived[slot][stage], 2 * plan.bytes);
      bulk_load(to, gy + b * size, plan.bytes, &arrived[slot][stage]);
      bulk_load(to + plan.tile, x + b * size, plan.bytes, &arrived[slot][stage]);
    }
  };
  if (leader) {
    for (int s = 0; s < stages; s++) barrier_init(&arrived[slot][s], 1);
    fence_for_copies();
    if (part < parts) fetch(part, 0);
  }
  prepare<kH>(memory, kSlots * stages * 2, filter, k, shape, plan.tile);
  if (part >= parts) return;
  Chunk totals[kTapChunks];
#pragma unroll
  for (int c = 0; c < kTapChunks; c++) clear(totals[c]);
  int stage = 0;
  unsigned parity = 0;
  for (int64_t b = part; b < shape.B; b += parts) {
    float* const gradient = tiles + 2 * stage * plan.tile + h;
    const float* const input = gradient + plan.tile;
    if (leader && stages == 2) {
      bulk_wait_read<0>();  // the sample before is on its way out of the other tile
      fetch(b + parts, stage ^ 1);
    }
    barrier_wait(&arrived[slot][stage], parity);
    Chunk before;
    clear(before);
#pragma unroll 1
    for (int o = 0; o < chunks; o++) {
      Chunk sums, now, near, far, more;
      clear(sums);
      if constexpr (kAdd) {  // asked for here, needed at the end
#pragma unroll
        for (int i = 0; i < kChunk; i++) {
          const int t = o * kChunk + i;
          more[i] = t < shape.L ? __ldcs(added + b * size + t * kH + h) : 0.0f;
        }
      }
      load_column<kH>(now, input, o * kChunk);
      load_column<kH>(near, gradient, o * kChunk);
#pragma unroll
      for (int c = 0; c < kTapChunks; c++) {
        if (o + c < chunks) {  // near: the gradient's chunk o + c
          Chunk factors, products;
          clear(products);
          multiply<Path::kWeightGrad, false>(products, near, now, now);
          if (o > 0) multiply_far<Path::kWeightGrad>(products, near, before);
#pragma unroll
          for (int i = 0; i < kChunk; i++) totals[c][i] += products[i];
          load_column<kH>(factors, filter + h, c * kChunk);
          multiply<Path::kInputGrad, false>(sums, factors, near, near);
          if (o + c + 1 < chunks) {
            load_column<kH>(far, gradient, (o + c + 1) * kChunk);
            multiply_far<Path::kInputGrad>(sums, factors, far);
            copy(near, far);
          }
        }
      }
      copy(before, now);
      if constexpr (kAdd) {
#pragma unroll
        for (int i = 0; i < kChunk; i++) sums[i] += more[i];
      }
      store_column<kH>(gradient, o * kChunk, shape.L, sums);
    }
    fence_for_copies();
    group_sync<kH>(slot);
    if (leader) {
      bulk_store(gx + b * size, tiles + 2 * stage * plan.tile, plan.bytes);
      if (stages == 1) {
        bulk_wait_read<0>();
        fetch(b + parts, 0);
      }
    }
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // The tiles' room serves once more, when the last samples have left it.
  if (leader) bulk_wait_read<0>();
  group_sync<kH>(slot);
  const int pitch = taps | 1;
#pragma unroll
  for (int c = 0; c < kTapChunks; c++) {
#pragma unroll
    for (int i = 0; i < kChunk; i++) {
      const int j = c * kChunk + i;
      if (j < taps) tiles[h * pitch + j] = totals[c][i];
    }
  }
  group_sync<kH>(slot);
  store_partials(partials + part * kH * taps, tiles, kH, taps, pitch, h, kH);
}

// y (B, H) of the last step. A block has 32 channels, whose filters it stages; a thread has a channel of one
// sample, and the next one of its part when that is done.
__global__ void __launch_bounds__(kThreads)
    last_forward_kernel(float* y, const float* x, const float* k, Shape shape, int64_t parts) {
  extern __shared__ float filter[];  // (taps, 32)
  const int h0 = blockIdx.x * 32, lane = threadIdx.x, taps = shape.taps();
  for (int i = threadIdx.y * 32 + lane; i < 32 * taps; i += kThreads) {
    const int h = i / taps, j = i % taps;
    filter[j * 32 + h] = h0 + h < shape.H ? k[static_cast<int64_t>(h0 + h) * shape.K + j] : 0.0f;
  }
  __syncthreads();
  const int h = h0 + lane;
  if (h >= shape.H) return;
  for (int64_t b = blockIdx.y + threadIdx.y * parts; b < shape.B; b += kLastRows * parts) {
    const float* const last = x + (b * shape.L + shape.L - 1) * shape.H + h;
    float sum = 0;
#pragma unroll 16
    for (int j = 0; j < taps; j++)
      sum += filter[j * 32 + lane] * __ldcs(last - static_cast<int64_t>(j) * shape.H);
    y[b * shape.H + h] = sum;
  }
}

// gx (B, L, H) and partial sums of gk from gy (B, H): a thread has a channel and every eighth step. `added`
// (B, H) is added to gx's last step.
__global__ void __launch_bounds__(kThreads)
    last_gradients_kernel(float* __restrict__ gx, float* partials, const float* __restrict__ gy,
                          const float* __restrict__ x, const float* k, const float* __restrict__ added,
                          Shape shape, int64_t parts) {
  extern __shared__ float of_taps[];  // (32, taps), in rows of an odd length
  const int h0 = blockIdx.x * 32, h = h0 + threadIdx.x, taps = shape.taps(), pitch = taps | 1;
  const int64_t part = blockIdx.y;
  for (int j0 = threadIdx.y; j0 < shape.L && h < shape.H; j0 += kLastRows * kLastSteps) {
    float factors[kLastSteps], sums[kLastSteps];
#pragma unroll
    for (int i = 0; i < kLastSteps; i++) {
      const int j = j0 + i * kLastRows;
      factors[i] = j < taps ? k[static_cast<int64_t>(h) * shape.K + j] : 0.0f;
      sums[i] = 0;
    }
    float now[kLastSteps], next[kLastSteps];
    const auto load = [&](int64_t b) {
      const float* const last = x + (b * shape.L + shape.L - 1) * shape.H + h;
#pragma unroll
      for (int i = 0; i < kLastSteps; i++) {
        const int j = j0 + i * kLastRows;
        next[i] = b < shape.B && j < shape.L ? __ldcs(last - j * shape.H) : 0.0f;
      }
    };
    load(part);
    for (int64_t b = part; b < shape.B; b += parts) {
#pragma unroll
      for (int i = 0; i < kLastSteps; i++) now[i] = next[i];
      load(b + parts);  // on its way while this sample goes out
      const float g = gy[b * shape.H + h];
      const float more = j0 == 0 ? added[b * shape.H + h] : 0.0f;
      float* const last = gx + (b * shape.L + shape.L - 1) * shape.H + h;
#pragma unroll
      for (int i = 0; i < kLastSteps; i++) {
        const int j = j0 + i * kLastRows;
        sums[i] += g * now[i];
        if (j < shape.L) __stcs(last - j * shape.H, g * factors[i] + (i == 0 ? more : 0.0f));
      }
    }
#pragma unroll
    for (int i = 0; i < kLastSteps; i++) {
      const int j = j0 + i * kLastRows;
      if (j < taps) of_taps[threadIdx.x * pitch + j] = sums[i];
    }
  }
  __syncthreads();
  store_partials(partials + (part * shape.H + h0) * taps, of_taps, min(32, shape.H - h0), taps, pitch,
                 threadIdx.y * 32 + threadIdx.x, kThreads);
}

// -- on the host -----------------------------------------------------------------------------------------

// Parts of the batch. They follow from B alone, and with them every bit of the result.
int64_t parts_of(int64_t B) {
  return std::max(ceil_div(B, kPartSamples), std::min<int64_t>(B, kFewestParts));
}

// Blocks of the last step alone: groups of 32 channels, and parts of the batch that follow from B alone.
dim3 last_grid(Shape shape) {
  const int64_t parts =
      std::max(ceil_div(shape.B, kLastPartSamples), std::min<int64_t>(shape.B, kFewestLastParts));
  return dim3(static_cast<unsigned>(ceil_div(shape.H, 32)),
              static_cast<unsigned>(std::min<int64_t>(parts, 65535)));
}

// As many stages as fit, up to `stages`; bytes: shared memory of a block.
Plan plan_for(Shape shape, int tensors, int stages, int device, size_t& bytes) {
  const size_t room = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) - 1024;
  Plan plan;
  plan.tile = static_cast<int>(ceil_div(shape.L, kChunk)) * kChunk * shape.H;
  plan.bytes = static_cast<unsigned>(sizeof(float)) * shape.L * shape.H;
  const size_t filter = ceil_div(shape.taps(), kChunk) * kChunk * shape.H;
  for (plan.stages = stages;; plan.stages--) {
    const size_t tiles = static_cast<size_t>(kThreads / shape.H) * plan.stages * tensors * plan.tile;
    bytes = sizeof(float) * (tiles + filter);
    if (bytes <= room || plan.stages == 1) return plan;
  }
}

template <int kH>
cudaError_t launch_forward(float* y, const float* x, const float* k, Shape shape, int device,
                           cudaStream_t stream) {
  size_t bytes;
  const Plan plan = plan_for(shape, 1, kForwardStages, device, bytes);
  const cudaError_t error = cudaFuncSetAttribute(
      forward_kernel<kH>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const int64_t blocks =
      std::min<int64_t>(ceil_div(shape.B, kThreads / kH), attribute(cudaDevAttrMultiProcessorCount, device));
  forward_kernel<kH><<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(y, x, k, shape, plan);
  return cudaGetLastError();
}

template <int kH, int kTapChunks>
cudaError_t launch_gradients(float* gx, float* partials, const float* gy, const float* x, const float* k,
                             const float* added, Shape shape, int device, cudaStream_t stream) {
  size_t bytes;
  const Plan plan = plan_for(shape, 2, 2, device, bytes);
  const auto kernel =
      added ? gradients_kernel<kH, kTapChunks, true> : gradients_kernel<kH, kTapChunks, false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  const int64_t parts = parts_of(shape.B);
  kernel<<<static_cast<unsigned>(ceil_div(parts, kThreads / kH)), kThreads, bytes, stream>>>(
      gx, partials, gy, x, k, added, shape, plan, parts);
  return cudaGetLastError();
}

template <int kH>
cudaError_t gradients_for(float* gx, float* partials, const float* gy, const float* x, const float* k,
                          const float* added, Shape shape, int device, cudaStream_t stream) {
  switch (ceil_div(shape.taps(), kChunk)) {
    case 1:
      return launch_gradients<kH, 1>(gx, partials, gy, x, k, added, shape, device, stream);
    case 2:
      return launch_gradients<kH, 2>(gx, partials, gy, x, k, added, shape, device, stream);
    case 3:
      return launch_gradients<kH, 3>(gx, partials, gy, x, k, added, shape, device, stream);
    case kMostTapChunks:
      return launch_gradients<kH, kMostTapChunks>(gx, partials, gy, x, k, added, shape, device, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

// Each returns cudaErrorInvalidValue for a shape it is not made for: B > 0, H 64 or 128, L up to 64.

EXPORT int ENTRY(forward)(float* y, const float* x, const float* k, Shape shape, int device,
                          cudaStream_t stream) {
  const DeviceGuard guard(device);
  if (shape.L > kMostTapChunks * kChunk) return cudaErrorInvalidValue;
  return shape.H == 128  ? launch_forward<128>(y, x, k, shape, device, stream)
         : shape.H == 64 ? launch_forward<64>(y, x, k, shape, device, stream)
                         : cudaErrorInvalidValue;
}

// Numbers of the partial sums, of either kind of gradients.
EXPORT int64_t ENTRY(partials)(Shape shape) {
  return std::max<int64_t>(parts_of(shape.B), last_grid(shape).y) * shape.H * shape.taps();
}

// gx (B, L, H) and gk (H, K) from gy; `added`, or null, is added to gx.
EXPORT int ENTRY(gradients)(float* gx, float* gk, float* partials, const float* gy, const float* x,
                            const float* k, const float* added, Shape shape, int device,
                            cudaStream_t stream) {
  const DeviceGuard guard(device);
  if (shape.L > kMostTapChunks * kChunk) return cudaErrorInvalidValue;
  const cudaError_t error =
      shape.H == 128  ? gradients_for<128>(gx, partials, gy, x, k, added, shape, device, stream)
      : shape.H == 64 ? gradients_for<64>(gx, partials, gy, x, k, added, shape, device, stream)
                      : cudaErrorInvalidValue;
  if (error != cudaSuccess) return error;
  return finish_weight_grad(gk, partials, parts_of(shape.B), shape, stream);
}

EXPORT int ENTRY(last_forward)(float* y, const float* x, const float* k, Shape shape, int device,
                               cudaStream_t stream) {
  const DeviceGuard guard(device);
  const dim3 grid = last_grid(shape);
  const size_t bytes = sizeof(float) * 32 * shape.taps();
  last_forward_kernel<<<grid, dim3(32, kLastRows), bytes, stream>>>(y, x, k, shape, grid.y);
  return cudaGetLastError();
}

EXPORT int ENTRY(last_gradients)(float* gx, float* gk, float* partials, const float* gy, const float* x,
                                 const float* k, const float* added, Shape shape, int device,
                                 cudaStream_t stream) {
  const DeviceGuard guard(device);
  const dim3 grid = last_grid(shape);
  const size_t bytes = sizeof(float) * 32 * (shape.taps() | 1);
  last_gradients_kernel<<<grid, dim3(32, kLastRows), bytes, stream>>>(gx, partials, gy, x, k, added, shape,
                                                                      grid.y);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return finish_weight_grad(gk, partials, grid.y, shape, stream);
}
