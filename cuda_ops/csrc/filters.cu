// filters: the filters of all blocks from their state-space models, and the gradients, a launch each.
//
// For a row (a channel of a block), with z = dt A, dt = exp(log_dt), A = -exp(log_A_re) + i A_im:
//
//     k[l] = 2 Re sum_n G_n exp(z_n l) + (skip, at l = 0),   G = C B,   B = (exp(z) - 1) / A
//
// The idea
//   A filter is small and its formula long: of PyTorch's own functions it takes some hundred launches, each
//   for next to nothing. In float64, as exp(z) - 1 and the phase of a late tap lose the digits of float32.
//   The gradients compute the modes again. With S_0 = sum_l gk[l] exp(z l) and S_1 = sum_l gk[l] l exp(z l),
//
//     dL = 2 Re( B S_0 dC + P dz - C S_0 B / A dA ),   P = C S_0 exp(z) / A + G S_1,   dz = A d(dt) + dt dA
//
// Threads to data
//   A block a row. Forward: a thread a tap and a quarter of the modes. Gradients: a thread a mode and an
//   eighth of the taps. What is shared out is added up in a fixed order.
#include "common.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kTaps = 64, kModeShares = kThreads / kTaps;   // forward
constexpr int kModes = 32, kTapShares = kThreads / kModes;  // gradients

struct Complex {
  double re, im;
};
__device__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
__device__ Complex operator/(Complex a, Complex b) {
  const double norm = b.re * b.re + b.im * b.im;
  return {(a.re * b.re + a.im * b.im) / norm, (a.im * b.re - a.re * b.im) / norm};
}

__device__ Complex exponential(Complex z) {
  double sine, cosine;
  sincos(z.im, &sine, &cosine);
  const double size = exp(z.re);
  return {size * cosine, size * sine};
}

// exp(z) - 1 without cancellation near zero.
__device__ Complex exponential_less_one(Complex z) {
  const double half = sin(z.im / 2);
  return {expm1(z.re) * cos(z.im) - 2 * half * half, exp(z.re) * sin(z.im)};
}

// The parameters, (rows) and (rows, modes), float32.
struct Parameters {
  const float *log_dt, *log_A_re, *A_im, *C_re, *C_im, *skip;
  int modes;
};

struct Mode {
  double dt;
  Complex A, z, B, C;
  __device__ Mode(const Parameters& of, int64_t row, int n) {
    const int64_t i = row * of.modes + n;
    dt = exp(static_cast<double>(of.log_dt[row]));
    A = {-exp(static_cast<double>(of.log_A_re[i])), of.A_im[i]};
    C = {of.C_re[i], of.C_im[i]};
    z = dt * A;
    B = exponential_less_one(z) / A;
  }
};

__global__ void __launch_bounds__(kThreads) filters_kernel(float* k, Parameters of, int length) {
  __shared__ double sums[kModeShares][kTaps];
  __shared__ Complex z[kModes], G[kModes];
  const int64_t row = blockIdx.x;
  const int tap = threadIdx.x % kTaps, share = threadIdx.x / kTaps;
  for (int first = 0; first < length; first += kTaps) {
    const int l = first + tap;
    double sum = 0;
    for (int n0 = 0; n0 < of.modes; n0 += kModes) {
      if (threadIdx.x < kModes && n0 + threadIdx.x < of.modes) {
        const Mode mode(of, row, n0 + threadIdx.x);
        z[threadIdx.x] = mode.z;
        G[threadIdx.x] = mode.C * mode.B;
      }
      __syncthreads();
      for (int n = share; n < kModes && n0 + n < of.modes; n += kModeShares) {
        sum += (G[n] * exponential(static_cast<double>(l) * z[n])).re;
      }
      __syncthreads();
    }
    sums[share][tap] = sum;
    __syncthreads();
    if (share == 0 && l < length) {
      for (int s = 1; s < kModeShares; s++) sum += sums[s][tap];
      k[row * length + l] = static_cast<float>(2 * sum + (l == 0 ? static_cast<double>(of.skip[row]) : 0.0));
    }
    __syncthreads();
  }
}

// What the gradients are written to, as `Parameters`.
struct Gradients {
  float *log_dt, *log_A_re, *A_im, *C_re, *C_im, *skip;
};

__global__ void __launch_bounds__(kThreads)
    filter_gradients_kernel(Gradients to, const float* gk, Parameters of, int length) {
  __shared__ Complex sums[2][kTapShares][kModes];
  __shared__ double of_dt[kModes];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kModes, share = threadIdx.x / kModes;
  double dt_sum = 0;
  for (int first = 0; first < of.modes; first += kModes) {
    const int n = first + lane;
    const bool inside = n < of.modes;
    const Mode mode(of, row, inside ? n : 0);
    Complex s0{0, 0}, s1{0, 0};
    for (int l = share; l < length; l += kTapShares) {
      const Complex term =
          static_cast<double>(gk[row * length + l]) * exponential(static_cast<double>(l) * mode.z);
      s0 = s0 + term;
      s1 = s1 + static_cast<double>(l) * term;
    }
    sums[0][share][lane] = s0;
    sums[1][share][lane] = s1;
    __syncthreads();
    if (share == 0) {
      for (int s = 1; s < kTapShares; s++) {
        s0 = s0 + sums[0][s][lane];
        s1 = s1 + sums[1][s][lane];
      }
      const Complex of_C = mode.B * s0;
      const Complex of_z = mode.C * s0 * exponential(mode.z) / mode.A + mode.C * mode.B * s1;
      const Complex of_A = mode.dt * of_z + (-1.0) * (mode.C * s0 * mode.B / mode.A);
      of_dt[lane] = inside ? 2 * (of_z * mode.A).re : 0;
      if (inside) {
        const int64_t i = row * of.modes + n;
        to.C_re[i] = static_cast<float>(2 * of_C.re);
        to.C_im[i] = static_cast<float>(-2 * of_C.im);
        to.log_A_re[i] = static_cast<float>(2 * of_A.re * mode.A.re);
        to.A_im[i] = static_cast<float>(-2 * of_A.im);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kModes; i++) dt_sum += of_dt[i];
    }
  }
  if (threadIdx.x == 0) {
    to.log_dt[row] = static_cast<float>(dt_sum * exp(static_cast<double>(of.log_dt[row])));
    to.skip[row] = gk[row * length];
  }
}

}  // namespace

// k (rows, length). rows, length > 0.
EXPORT int ENTRY(filters)(float* k, const float* log_dt, const float* log_A_re, const float* A_im,
                          const float* C_re, const float* C_im, const float* skip, int rows, int modes,
                          int length, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  filters_kernel<<<rows, kThreads, 0, stream>>>(k, {log_dt, log_A_re, A_im, C_re, C_im, skip, modes}, length);
  return cudaGetLastError();
}

EXPORT int ENTRY(filter_gradients)(float* of_log_dt, float* of_log_A_re, float* of_A_im, float* of_C_re,
                                   float* of_C_im, float* of_skip, const float* gk, const float* log_dt,
                                   const float* log_A_re, const float* A_im, const float* C_re,
                                   const float* C_im, const float* skip, int rows, int modes, int length,
                                   int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  filter_gradients_kernel<<<rows, kThreads, 0, stream>>>(
      {of_log_dt, of_log_A_re, of_A_im, of_C_re, of_C_im, of_skip}, gk,
      {log_dt, log_A_re, A_im, C_re, C_im, skip, modes}, length);
  return cudaGetLastError();
}
