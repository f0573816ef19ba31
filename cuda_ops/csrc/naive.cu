// naive: one thread for each output element, straight from the definition.
//
// Threads to data
//   forward, input gradient  thread i computes element i of the output, t running fastest. It reads each
//                            x and each tap that it needs from global memory.
//   weight gradient          one thread for each (h, j), which walks over the whole batch: H K threads,
//                            6144 at the study's shape, on a GPU that holds 270,000.
//
// Cost
//   Each multiply-add asks for two numbers: 2 * 4 bytes * B H L (L+1)/2 = 19.7 GB for a path at the study's
//   shape, against 0.8 GB that have to be moved. The caches catch most of it, and are what it waits for.
//   The weight gradient adds one flat chain of B L terms in order, so its rounding error grows with the
//   square root of that number; the other variants add in a tree.
#include "common.cuh"

namespace {

constexpr int kThreads = 256;

__device__ int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__global__ void forward_kernel(scalar* y, const scalar* x, const scalar* k, Shape shape) {
  const int64_t i = thread_index();
  if (i >= shape.elements()) return;
  const int64_t row = i / shape.L;
  const int t = static_cast<int>(i - row * shape.L);
  const scalar* filter = k + row % shape.H * shape.K;
  const scalar* signal = x + row * shape.L;
  accum sum = 0;
  for (int j = 0; j <= min(t, shape.K - 1); j++) sum += wide(filter[j]) * wide(signal[t - j]);
  y[i] = narrow(sum);
}

__global__ void input_grad_kernel(scalar* gx, const scalar* gy, const scalar* k, Shape shape) {
  const int64_t i = thread_index();
  if (i >= shape.elements()) return;
  const int64_t row = i / shape.L;
  const int s = static_cast<int>(i - row * shape.L);
  const scalar* filter = k + row % shape.H * shape.K;
  const scalar* gradient = gy + row * shape.L;
  accum sum = 0;
  for (int j = 0; j <= min(shape.L - 1 - s, shape.K - 1); j++) {
    sum += wide(filter[j]) * wide(gradient[s + j]);
  }
  gx[i] = narrow(sum);
}

__global__ void weight_grad_kernel(scalar* gk, const scalar* gy, const scalar* x, Shape shape) {
  const int64_t i = thread_index();
  if (i >= static_cast<int64_t>(shape.H) * shape.K) return;
  const int h = static_cast<int>(i / shape.K);
  const int j = static_cast<int>(i % shape.K);
  accum sum = 0;
  for (int64_t b = 0; b < shape.B; b++) {
    const int64_t row = (b * shape.H + h) * shape.L;
    for (int t = j; t < shape.L; t++) sum += wide(gy[row + t]) * wide(x[row + t - j]);
  }
  gk[i] = narrow(sum);
}

}  // namespace

EXPORT int ENTRY(forward)(scalar* y, const scalar* x, const scalar* k, Shape shape, int device,
                          cudaStream_t stream) {
  const DeviceGuard guard(device);
  forward_kernel<<<ceil_div(shape.elements(), kThreads), kThreads, 0, stream>>>(y, x, k, shape);
  return cudaGetLastError();
}

EXPORT int ENTRY(input_grad)(scalar* gx, const scalar* gy, const scalar* k, Shape shape, int device,
                             cudaStream_t stream) {
  const DeviceGuard guard(device);
  input_grad_kernel<<<ceil_div(shape.elements(), kThreads), kThreads, 0, stream>>>(gx, gy, k, shape);
  return cudaGetLastError();
}

EXPORT int64_t ENTRY(weight_grad_partials)(Shape) { return 0; }

EXPORT int ENTRY(weight_grad)(scalar* gk, const scalar* gy, const scalar* x, accum*, Shape shape, int64_t,
                              int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const int64_t outputs = static_cast<int64_t>(shape.H) * shape.K;
  weight_grad_kernel<<<ceil_div(outputs, kThreads), kThreads, 0, stream>>>(gk, gy, x, shape);
  return cudaGetLastError();
}
