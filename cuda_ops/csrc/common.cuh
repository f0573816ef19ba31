// What the four variants share: the scalar type, the C interface, and the last step of the weight gradient.
//
// The operator, for x, y (B, H, L) and k (H, K), all contiguous:
//
//     y[b,h,t]  = sum_{j=0..min(t,K-1)}      k[h,j]    x[b,h,t-j]     forward
//     gx[b,h,s] = sum_{j=0..min(L-1-s,K-1)}  k[h,j]    gy[b,h,s+j]    input gradient
//     gk[h,j]   = sum_b sum_{t=j..L-1}       gy[b,h,t] x[b,h,t-j]     weight gradient
//
// A variant is compiled once for each scalar type, chosen by a macro, into objects whose symbols end in
// the type's name. The interface is plain C: no header of PyTorch is read, so a file compiles in seconds
// and the result does not depend on PyTorch's version.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#if defined(SCALAR_float32)
using scalar = float;
using accum = float;
#define ENTRY(name) name##_float32
#elif defined(SCALAR_float64)
using scalar = double;
using accum = double;
#define ENTRY(name) name##_float64
#elif defined(SCALAR_float16)
#include <cuda_fp16.h>
using scalar = __half;
using accum = float;
#define ENTRY(name) name##_float16
#elif defined(SCALAR_bfloat16)
#include <cuda_bf16.h>
using scalar = __nv_bfloat16;
using accum = float;
#define ENTRY(name) name##_bfloat16
#else
#error "define one of SCALAR_float32, SCALAR_float64, SCALAR_float16, SCALAR_bfloat16"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

// Arithmetic is in float32, in float64 for float64; a result is rounded to its type once.
__device__ inline accum wide(scalar value) { return static_cast<accum>(value); }
__device__ inline scalar narrow(accum value) { return static_cast<scalar>(value); }

// H, L, K and the rows of a tile fit 32 bits; B and every product with it need 64.
struct Shape {
  int64_t B;
  int H, L, K;

  __host__ __device__ int64_t rows() const { return B * H; }
  __host__ __device__ int64_t elements() const { return B * H * L; }
  __host__ __device__ int taps() const { return K < L ? K : L; }  // further taps meet nothing
};

__host__ __device__ inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, name, device);
  return value;
}

// Makes `device` current for as long as it lives, as PyTorch's own guard does.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&previous_);
    if (previous_ != device) cudaSetDevice(device);
    changed_ = previous_ != device;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// The weight gradient is a sum over the batch. So that its bits depend on nothing but the input, the batch
// is cut into parts by B alone, a part is summed by one block in an order of its own, and the partial sums,
// (parts, H, taps), are added here in an order that never changes: strand s takes parts s, s + 16, ...,
// then the strands are added from 0 to 15. No atomics.
constexpr int kStrands = 16;

__global__ void sum_partials(scalar* gk, const accum* partials, int64_t parts, Shape shape) {
  __shared__ accum strands[kStrands][32];
  const int taps = shape.taps();
  const int64_t n = static_cast<int64_t>(shape.H) * taps;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;  // of (H, taps)
  accum sum = 0;
  if (i < n) {
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += kStrands) sum += partials[part * n + i];
  }
  strands[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && i < n) {
    for (int s = 1; s < kStrands; s++) sum += strands[s][threadIdx.x];
    gk[i / taps * shape.K + i % taps] = narrow(sum);
  }
}

// gk from the partial sums; taps past L stay zero. B > 0.
inline cudaError_t finish_weight_grad(scalar* gk, const accum* partials, int64_t parts, Shape shape,
                                      cudaStream_t stream) {
  if (shape.K > shape.taps()) {
    const cudaError_t error =
        cudaMemsetAsync(gk, 0, sizeof(scalar) * shape.H * static_cast<size_t>(shape.K), stream);
    if (error != cudaSuccess) return error;
  }
  const int64_t n = static_cast<int64_t>(shape.H) * shape.taps();
  sum_partials<<<ceil_div(n, 32), dim3(32, kStrands), 0, stream>>>(gk, partials, parts, shape);
  return cudaGetLastError();
}

// A grid of one block a unit of work; `most` > 0 forces a smaller one, which must not change a bit.
inline unsigned grid_size(int64_t units, int64_t most) {
  const int64_t limit = most > 0 ? most : INT32_MAX;
  return static_cast<unsigned>(units < limit ? units : limit);
}

EXPORT const char* ENTRY(error_string)(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
