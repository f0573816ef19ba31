// coalesced: the reads of naive, with the work laid out so that a warp's reads are whole runs of memory.
//
// Threads to data
//   forward, input gradient  a warp owns a row (b, h); its lanes stand on 32 neighbouring time steps, so a
//                            read of x is 128 consecutive bytes and a read of the filter one word for all.
//   weight gradient          a warp owns one tap (h, j) for a part of the batch; its lanes stand on 32
//                            neighbouring time steps of gy and of x. The warp's sum is a tree over lanes.
//                            The eight warps of a block hold neighbouring taps, and so read the same rows.
//
// Cost
//   As many reads as naive, two for each multiply-add, and nothing kept on chip but by the caches. What is
//   gained is fewer segments for each read, and in the weight gradient a batch that is cut into parts, so
//   that the GPU is full. Partial sums: 4 bytes * H K for every 512 samples.
#include "common.cuh"

namespace {

constexpr int kWarps = 8;
constexpr int kRuns = 2;       // of 32 outputs, computed at once with one read of each tap
constexpr int kSamples = 512;  // samples in a part of the weight gradient

// forward: the output at t meets the input at t - j; input gradient (kMirrored): at t + j.
template <bool kMirrored>
__global__ void row_kernel(scalar* out, const scalar* in, const scalar* k, Shape shape) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= shape.rows()) return;
  const scalar* filter = k + row % shape.H * shape.K;
  const scalar* input = in + row * shape.L;
  for (int start = 0; start < shape.L; start += 32 * kRuns) {
    accum sums[kRuns] = {};
    const int taps = min(shape.K, kMirrored ? shape.L - start : min(start + 32 * kRuns, shape.L));
    for (int j = 0; j < taps; j++) {
      const accum tap = wide(filter[j]);
#pragma unroll
      for (int r = 0; r < kRuns; r++) {
        const int t = start + 32 * r + threadIdx.x;
        const int at = kMirrored ? t + j : t - j;
        if (t < shape.L && at >= 0 && at < shape.L) sums[r] += tap * wide(input[at]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRuns; r++) {
      const int t = start + 32 * r + threadIdx.x;
      if (t < shape.L) out[row * shape.L + t] = narrow(sums[r]);
    }
  }
}

__global__ void weight_grad_kernel(accum* partials, const scalar* gy, const scalar* x, Shape shape,
                                   int64_t units) {
  const int taps = shape.taps();
  const int64_t tap_groups = ceil_div(taps, kWarps);
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int j = static_cast<int>(unit % tap_groups) * kWarps + threadIdx.y;
    const int h = static_cast<int>(unit / tap_groups % shape.H);
    const int64_t part = unit / tap_groups / shape.H;
    if (j >= taps) continue;
    accum sum = 0;
    for (int64_t b = part * kSamples; b < min((part + 1) * kSamples, shape.B); b++) {
      const int64_t row = (b * shape.H + h) * shape.L;
      accum of_sample = 0;
      for (int s = threadIdx.x; s < shape.L - j; s += 32) {
        of_sample += wide(gy[row + s + j]) * wide(x[row + s]);
      }
      sum += of_sample;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_down_sync(0xffffffff, sum, distance);
    }
    if (threadIdx.x == 0) partials[(part * shape.H + h) * taps + j] = sum;
  }
}

int64_t parts(Shape shape) { return ceil_div(shape.B, kSamples); }

}  // namespace

EXPORT int ENTRY(forward)(scalar* y, const scalar* x, const scalar* k, Shape shape, int device,
                          cudaStream_t stream) {
  const DeviceGuard guard(device);
  row_kernel<false><<<ceil_div(shape.rows(), kWarps), dim3(32, kWarps), 0, stream>>>(y, x, k, shape);
  return cudaGetLastError();
}

EXPORT int ENTRY(input_grad)(scalar* gx, const scalar* gy, const scalar* k, Shape shape, int device,
                             cudaStream_t stream) {
  const DeviceGuard guard(device);
  row_kernel<true><<<ceil_div(shape.rows(), kWarps), dim3(32, kWarps), 0, stream>>>(gx, gy, k, shape);
  return cudaGetLastError();
}

EXPORT int64_t ENTRY(weight_grad_partials)(Shape shape) { return parts(shape) * shape.H * shape.taps(); }

EXPORT int ENTRY(weight_grad)(scalar* gk, const scalar* gy, const scalar* x, accum* partials, Shape shape,
                              int64_t most_blocks, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const int64_t units = parts(shape) * shape.H * ceil_div(shape.taps(), kWarps);
  weight_grad_kernel<<<grid_size(units, most_blocks), dim3(32, kWarps), 0, stream>>>(partials, gy, x, shape,
                                                                                     units);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return finish_weight_grad(gk, partials, parts(shape), shape, stream);
}
