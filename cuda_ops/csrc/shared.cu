// shared: a block stages its rows and their filters in shared memory and works from there.
//
// Threads to data
//   forward, input gradient  a block owns 32 neighbouring rows (b, h) for a stretch of 64 time steps. It
//                            stages what they need of the input and of the filters, a tile of taps at a
//                            time. Lane r works on row r, a warp on every eighth step, so that all lanes of
//                            a warp have as many taps to meet; rows lie an odd number of words apart, so
//                            they meet no bank twice.
//   weight gradient          a block owns a tile of taps of one channel, for a part of the batch. It stages
//                            as many samples at once as it has slices of threads; a thread owns one tap of
//                            its slice's sample. The slices are added in a fixed order at the end.
//
// Cost
//   A row of up to 64 steps is read from global memory once, so the bytes are the compulsory ones:
//   4 (2 B H L) for a path. Every multiply-add still reads two numbers, now from shared memory, which moves
//   32 words a cycle: that, not the memory, is the limit. Partial sums: 4 bytes * H K for 256 samples.
#include "common.cuh"

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 32;                            // of a block, one a lane
constexpr int kSteps = 64;                           // outputs of a row that a block computes
constexpr int kTile = sizeof(accum) == 4 ? 64 : 32;  // taps that it stages at once
constexpr int kInputPitch = kSteps + kTile - 1;      // odd, as is the next
constexpr int kFilterPitch = kTile + 1;
constexpr int kTapTile = 64;   // taps that a block of the weight gradient owns
constexpr int kStretch = 128;  // time steps that it stages at once
constexpr int kStaged = 4096;  // numbers that it stages at once
constexpr int kSamples = 256;  // samples in a part of the batch

// Copies [first, first + width) of `rows` rows to rows `pitch` apart, a warp to a row. row(r) is where row r
// begins in global memory.
template <typename Row>
__device__ void stage(accum* to, int pitch, int rows, int first, int width, Row row) {
  for (int r = threadIdx.x / 32; r < rows; r += kWarps) {
    const scalar* from = row(r) + first;
    for (int i = threadIdx.x % 32; i < width; i += 32) to[r * pitch + i] = wide(from[i]);
  }
}

int64_t stretches(Shape shape) { return ceil_div(shape.rows(), kRows) * ceil_div(shape.L, kSteps); }

// forward: the output at t meets the input at t - j; input gradient (kMirrored): at t + j.
template <bool kMirrored>
__global__ void __launch_bounds__(kThreads)
    row_kernel(scalar* out, const scalar* in, const scalar* k, Shape shape) {
  __shared__ accum inputs[kRows * kInputPitch];
  __shared__ accum filters[kRows * kFilterPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t stretches_of_row = ceil_div(shape.L, kSteps);
  const int64_t row0 = blockIdx.x / stretches_of_row * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), shape.rows() - row0));
  const int start = static_cast<int>(blockIdx.x % stretches_of_row) * kSteps;
  const int end = min(start + kSteps, shape.L);
  const int taps = min(shape.K, kMirrored ? shape.L - start : end);  // that have an input to meet

  accum sums[kSteps / kWarps] = {};
  for (int j0 = 0; j0 < taps; j0 += kTile) {
    const int j1 = min(j0 + kTile, taps);
    const int first = max(0, kMirrored ? start + j0 : start - (j1 - 1));
    const int last = min(shape.L, end + (kMirrored ? j1 - 1 : -j0));
    stage(inputs, kInputPitch, rows, first, last - first, [&](int r) { return in + (row0 + r) * shape.L; });
    stage(filters, kFilterPitch, rows, j0, j1 - j0,
          [&](int r) { return k + (row0 + r) % shape.H * shape.K; });
    __syncthreads();
    if (lane < rows) {
      const accum* input = inputs + lane * kInputPitch - first;
      const accum* filter = filters + lane * kFilterPitch - j0;
#pragma unroll
      for (int o = 0; o < kSteps / kWarps; o++) {
        const int t = start + warp + o * kWarps;
        if (t >= end) break;
        const int stop = min(j1, kMirrored ? shape.L - t : t + 1);
        for (int j = j0; j < stop; j++) sums[o] += filter[j] * input[kMirrored ? t + j : t - j];
      }
    }
    __syncthreads();
  }
  // Through shared memory once more, so that a warp writes neighbouring steps.
#pragma unroll
  for (int o = 0; o < kSteps / kWarps; o++) inputs[lane * kInputPitch + warp + o * kWarps] = sums[o];
  __syncthreads();
  for (int r = warp; r < rows; r += kWarps) {
    for (int t = start + lane; t < end; t += 32) {
      out[(row0 + r) * shape.L + t] = narrow(inputs[r * kInputPitch + t - start]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(accum* partials, const scalar* gy, const scalar* x, Shape shape, int64_t units) {
  __shared__ accum staged[kStaged];
  const int taps = shape.taps();
  const int64_t tap_tiles = ceil_div(taps, kTapTile);
  const int64_t pitch = static_cast<int64_t>(shape.H) * shape.L;  // from sample to sample
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int j0 = static_cast<int>(unit % tap_tiles) * kTapTile;
    const int own_taps = min(kTapTile, taps - j0);
    const int h = static_cast<int>(unit / tap_tiles % shape.H);
    const int64_t part = unit / tap_tiles / shape.H;
    const int64_t end = min((part + 1) * kSamples, shape.B);
    const int steps = min(kStretch, shape.L);
    const int widest = min(shape.L, steps + own_taps - 1);  // of the staged stretch of x
    const int slices = min(kThreads / own_taps, kStaged / (steps + widest));
    const int slice = threadIdx.x / own_taps;
    const int j = j0 + threadIdx.x % own_taps;
    accum sum = 0;
    for (int64_t b = part * kSamples; b < end; b += slices) {
      const int samples = static_cast<int>(min(static_cast<int64_t>(slices), end - b));
      accum of_sample = 0;
      for (int t0 = 0; t0 < shape.L; t0 += steps) {
        const int t1 = min(t0 + steps, shape.L);
        const int first = max(0, t0 - (j0 + own_taps - 1));
        const int last = max(first, t1 - j0);
        const int64_t sample = b * pitch + static_cast<int64_t>(h) * shape.L;
        accum* inputs = staged + slices * steps;
        stage(staged, steps, samples, t0, t1 - t0, [&](int r) { return gy + sample + r * pitch; });
        stage(inputs, widest, samples, first, last - first, [&](int r) { return x + sample + r * pitch; });
        __syncthreads();
        if (slice < samples) {
          const accum* gradient = staged + slice * steps - t0;
          const accum* input = inputs + slice * widest - first;
          for (int t = max(t0, j); t < t1; t++) of_sample += gradient[t] * input[t - j];
        }
        __syncthreads();
      }
      sum += of_sample;
    }
    if (slice < slices) staged[threadIdx.x] = sum;
    __syncthreads();
    if (slice == 0) {
      for (int s = 1; s < slices; s++) sum += staged[s * own_taps + threadIdx.x];
      partials[(part * shape.H + h) * taps + j] = sum;
    }
    __syncthreads();
  }
}

int64_t parts(Shape shape) { return ceil_div(shape.B, kSamples); }

}  // namespace

EXPORT int ENTRY(forward)(scalar* y, const scalar* x, const scalar* k, Shape shape, int device,
                          cudaStream_t stream) {
  const DeviceGuard guard(device);
  row_kernel<false><<<static_cast<unsigned>(stretches(shape)), kThreads, 0, stream>>>(y, x, k, shape);
  return cudaGetLastError();
}

EXPORT int ENTRY(input_grad)(scalar* gx, const scalar* gy, const scalar* k, Shape shape, int device,
                             cudaStream_t stream) {
  const DeviceGuard guard(device);
  row_kernel<true><<<static_cast<unsigned>(stretches(shape)), kThreads, 0, stream>>>(gx, gy, k, shape);
  return cudaGetLastError();
}

EXPORT int64_t ENTRY(weight_grad_partials)(Shape shape) { return parts(shape) * shape.H * shape.taps(); }

EXPORT int ENTRY(weight_grad)(scalar* gk, const scalar* gy, const scalar* x, accum* partials, Shape shape,
                              int64_t most_blocks, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const int64_t units = parts(shape) * shape.H * ceil_div(shape.taps(), kTapTile);
  weight_grad_kernel<<<grid_size(units, most_blocks), kThreads, 0, stream>>>(partials, gy, x, shape, units);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return finish_weight_grad(gk, partials, parts(shape), shape, stream);
}
