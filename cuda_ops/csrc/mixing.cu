// mixing: what a block does between its convolution and its end, in one pass each way.
//
//     out = x + a * sigmoid(g),  (a, g) = W y + b,  y = GELU(dropout(z))
//
// on z, x, out (M, H), M rows of all samples and steps, W (2H, H). float32, products in TF32, Hopper.
//
// The idea
//   The products' weights stay in shared memory, as images (wgmma.cuh) made by `images`; a row passes through
//   registers. PyTorch's own functions write and read y, a and g, and each pass over the elements anew.
//   Nothing but z is kept for the gradients, which compute y, a and g again: cheaper than to read them.
//
// Threads to data
//   forward         a warp group has 64 rows. A thread reads its share of z as it is copied, makes y of it,
//                   and that is the first operand; a band of 32 channels and their gates is one product of
//                   16 instructions. Three groups take turns with memory, tensor cores and arithmetic.
//   input gradient  the same product again; then the gradients of a and g, which are the operand of the
//                   product with W transposed, as they stand in registers. Its bands come from the L2, as
//                   shared memory holds W itself. GELU's slope takes the place of z in shared memory.
//   weight gradient rows are what is summed over, so the product is made the other way round: (a, g)
//                   transposed = W y transposed, whose gradient again is an operand as it stands. y lies in
//                   shared memory both ways. The sums of all 2H x H weights stay in registers over a
//                   part of the rows, which follows from M alone.
//
// Dropout
//   By a hash (dropout.cuh): the gradients see what the forward path saw.
//
// Cost
//   Compulsory bytes, 4 M H each: 3 forward (z, x, out), 3 for dz (dout, z, dz), 2 for dW. FLOPs: 4 M H H for
//   each of the 1 + 2 + 2 products.
#include <algorithm>

#include "activations.cuh"
#include "common.cuh"
#include "dropout.cuh"
#include "wgmma.cuh"

namespace {

constexpr int kRows = 64;        // of a warp group's tile
constexpr int kBand = 32;        // channels, and as many gates
constexpr int kSumRows = 32;     // of a tile of the weight gradient
constexpr int kMostParts = 128;  // of the rows, weight gradient
constexpr int kTilesOfPart = 4;  // at least

// -- the images of W -------------------------------------------------------------------------------------

// A thread reads and writes rows 16 bytes at a time: numbers 16 g + 4 q + e of them. So among the k of a
// product whose first operand is such a row, and among the n of one whose result is, channel h stands at
__host__ __device__ int k_place(int h) { return h / 16 * 16 + h % 4 / 2 * 8 + h % 16 / 4 + h % 2 * 4; }
__host__ __device__ int n_place(int h) { return h / 16 * 16 + h % 4 / 2 * 8 + h % 16 / 4 * 2 + h % 2; }

// W for (a, g) = W y: a band after another, (32 channels and their gates, H).
// W transposed for dy: a band after another, (H, 32 channels and their gates).
// W for the weight gradient: (2H, H), rows in groups of 8 channels and their gates.
template <int kH>
__global__ void images_kernel(float* for_mixing, float* for_input, float* for_weight, const float* w) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // of (2H, H)
  const int gate = i / kH / kH, c = i / kH % kH, h = i % kH;
  const float value = __uint_as_float(to_tf32(w[i]));
  const int band = c / kBand * 2 * kBand * kH, inside = c % kBand;
  for_mixing[band + image_index(gate * kBand + n_place(inside), k_place(h), 2 * kBand)] = value;
  for_input[band + image_index(n_place(h), gate * kBand + k_place(inside), kH)] = value;
  for_weight[image_index(c / 8 * 16 + gate * 8 + c % 8, h, 2 * kH)] = value;
}

// An image, and b, whose gates' part is scaled for `sigmoid_of`; ends with all threads in step.
template <int kH>
__device__ void stage_weights(float* image, float* biases, const float* from, const float* bias) {
  for (int i = threadIdx.x; i < 2 * kH * kH / 4; i += blockDim.x) {
    reinterpret_cast<float4*>(image)[i] = reinterpret_cast<const float4*>(from)[i];
  }
  for (int i = threadIdx.x; i < 2 * kH; i += blockDim.x) biases[i] = i < kH ? bias[i] : -kLog2e * bias[i];
  fence_for_copies();
  __syncthreads();
}

// -- rows of a tile --------------------------------------------------------------------------------------

// Where a thread of a warp group stands in its tile: rows `row` and row + 8, numbers 16 g + 4 q + e of each.
struct Place {
  int row, q;
  __device__ Place() : row(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4), q(threadIdx.x % 4) {}
};

__device__ void unpack(float (&to)[4], float4 from) {
  to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}
__device__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ void store4(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = float4{v[0], v[1], v[2], v[3]};
}

// Bytes of a tile's rows that exist.
template <int kH>
__device__ unsigned tile_bytes(int64_t first, int64_t M, int rows) {
  const int64_t left = M - first;
  return static_cast<unsigned>(left < rows ? (left > 0 ? left : 0) : rows) * kH * sizeof(float);
}

template <int kH>
__device__ void prefetch_tile(const float* tensor, int64_t first, int64_t M, int rows) {
  const unsigned bytes = tile_bytes<kH>(first, M, rows);
  if (bytes) bulk_prefetch(tensor + first * kH, bytes);
}

template <int kH>
__device__ void fetch_tile(float* to, const float* tensor, int64_t first, int64_t M, uint64_t* arrived) {
  const unsigned bytes = tile_bytes<kH>(first, M, kRows);
  if (bytes) {
    barrier_expect(arrived, bytes);
    bulk_load(to, tensor + first * kH, bytes, arrived);
  }
}

// y from z, as an operand. Where kSlope, what y's gradient is multiplied by takes the place of z.
template <int kH, bool kSlope, bool kDrop>
__device__ void make_y(uint32_t (&y)[kH / 8][4], float* tile, int64_t first, const Place& own,
                       const Mask<kDrop>& mask) {
  const auto keep = mask.from(first * kH);
#pragma unroll
  for (int g = 0; g < kH / 16; g++) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = (own.row + 8 * r) * kH + 16 * g + 4 * own.q;
      float v[4];
      unpack(v, load4(tile + at));
      float kept[4];
      keep.pair(at, kept[0], kept[1]);
      keep.pair(at + 2, kept[2], kept[3]);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float slope;
        y[2 * g + e / 2][e % 2 * 2 + r] = to_tf32(gelu(v[e] * kept[e], slope));
        v[e] = slope * kept[e];
      }
      if constexpr (kSlope) store4(tile + at, v);
    }
  }
}

// d = (a, g) of a band, to be waited for.
template <int kH>
__device__ void start_band(float (&d)[32], uint32_t (&y)[kH / 8][4], uint64_t weights, int band) {
  hold(y);
  hold(d);
  products_begin();
#pragma unroll
  for (int s = 0; s < kH / 8; s++) {
    multiply(d, y[s], at_step(weights, s, 2 * kBand) + (band * 2 * kBand * kH * sizeof(float) >> 4), s > 0);
  }
  products_end();
}

// -- the kernels -----------------------------------------------------------------------------------------

constexpr int kForwardGroups = 3;

template <int kH, bool kDrop>
__global__ void __launch_bounds__(128 * kForwardGroups, 1)
    forward_kernel(float* out, const float* x, const float* z, const float* image, const float* bias,
                   int64_t M, Dropout dropout) {
  extern __shared__ __align__(1024) float memory[];
  __shared__ __align__(16) float biases[2 * kH];
  __shared__ uint64_t arrived[kForwardGroups];
  const int group = threadIdx.x / 128;
  const bool leader = threadIdx.x % 128 == 0;
  const Place own;
  float* const tile = memory + 2 * kH * kH + group * kRows * kH;
  if (leader) barrier_init(&arrived[group], 1);
  stage_weights<kH>(memory, biases, image, bias);
  const Mask<kDrop> mask(dropout);
  const uint64_t weights = image_descriptor(memory);

  const int64_t step = static_cast<int64_t>(gridDim.x) * kForwardGroups * kRows;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kForwardGroups + group) * kRows;
  if (leader) fetch_tile<kH>(tile, z, first, M, &arrived[group]);
  for (unsigned parity = 0; first < M; first += step, parity ^= 1) {
    uint32_t y[kH / 8][4];
    if (leader) prefetch_tile<kH>(x, first, M, kRows);  // is in the L2 when it is asked for
    barrier_wait(&arrived[group], parity);
    make_y<kH, false>(y, tile, first, own, mask);
    group_sync<128>(group);
    if (leader) fetch_tile<kH>(tile, z, first + step, M, &arrived[group]);
#pragma unroll 1  // the instructions would not fit their cache
    for (int band = 0; band < kH / kBand; band++) {
      float d[32];
      float4 residual[2][2];
      start_band<kH>(d, y, weights, band);
      const int64_t at = (first + own.row) * kH + band * kBand + 4 * own.q;
#pragma unroll
      for (int g = 0; g < 2; g++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          if (first + own.row + 8 * r < M) residual[g][r] = load4(x + at + 8 * r * kH + 16 * g);
        }
      }
      products_wait<0>();
      hold(d);
#pragma unroll
      for (int g = 0; g < 2; g++) {
        const int c = band * kBand + 16 * g + 4 * own.q;
        float bias_a[4], bias_g[4];
        unpack(bias_a, load4(biases + c));
        unpack(bias_g, load4(biases + kH + c));
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float v[4];
          unpack(v, residual[g][r]);
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int i = (2 * g + e / 2) * 4 + 2 * r + e % 2;
            v[e] += (d[i] + bias_a[e]) * sigmoid_of(fmaf(-kLog2e, d[16 + i], bias_g[e]));
          }
          if (first + own.row + 8 * r < M) store4(out + at + 8 * r * kH + 16 * g, v);
        }
      }
    }
  }
}

template <int kH, bool kDrop>
__global__ void __launch_bounds__(384, 1)
    input_grad_kernel(float* dz, const float* dout, const float* z, const float* image,
                      const float* transposed, const float* bias, int64_t M, Dropout dropout) {
  constexpr int kPiece = 2 * kBand * kH;  // numbers of a band of W transposed
  extern __shared__ __align__(1024) float memory[];
  __shared__ __align__(16) float biases[2 * kH];
  __shared__ uint64_t arrived[2], full, empty;
  float* const piece = memory + 2 * kH * kH;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    barrier_init(&arrived[0], 1);
    barrier_init(&arrived[1], 1);
    barrier_init(&full, 1);
    barrier_init(&empty, 8);  // warps
  }
  stage_weights<kH>(memory, biases, image, bias);
  const int64_t step = static_cast<int64_t>(gridDim.x) * 2 * kRows;
  unsigned parity = 0;
  if (group == 2) {  // brings the bands of W transposed, one after another
    give_registers<24>();
    if (threadIdx.x == 256) {
      for (int64_t first = static_cast<int64_t>(blockIdx.x) * 2 * kRows; first < M; first += step) {
        for (int band = 0; band < kH / kBand; band++, parity ^= 1) {
          barrier_wait(&empty, parity ^ 1);
          barrier_expect(&full, kPiece * sizeof(float));
          bulk_load(piece, transposed + band * kPiece, kPiece * sizeof(float), &full);
        }
      }
    }
  } else {
    take_registers<240>();
    const Place own;
    const Mask<kDrop> mask(dropout);
    float* const tile = piece + kPiece + group * kRows * kH;
    const uint64_t weights = image_descriptor(memory), pieces = image_descriptor(piece);
    unsigned turn = 0;
    for (int64_t pair = static_cast<int64_t>(blockIdx.x) * 2 * kRows; pair < M; pair += step) {
      const int64_t first = pair + group * kRows;  // beyond M for the second group of the last pair, at times
      fence_for_copies();
      group_sync<128>(group);
      if (threadIdx.x % 128 == 0) {
        fetch_tile<kH>(tile, z, first, M, &arrived[group]);
        prefetch_tile<kH>(dout, first, M, kRows);
        prefetch_tile<kH>(z, first + step, M, kRows);
      }
      if (first < M) {
        barrier_wait(&arrived[group], turn);
        turn ^= 1;
      }
      uint32_t y[kH / 8][4];
      make_y<kH, true>(y, tile, first, own, mask);
      float dy[kH / 2];
#pragma unroll 1
      for (int band = 0; band < kH / kBand; band++, parity ^= 1) {
        float d[32];
        float4 grad[2][2];
        const int64_t at = (first + own.row) * kH + band * kBand + 4 * own.q;
#pragma unroll
        for (int g = 0; g < 2; g++) {
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const bool inside = first + own.row + 8 * r < M;
            grad[g][r] = inside ? load4(dout + at + 8 * r * kH + 16 * g) : float4{0, 0, 0, 0};
          }
        }
        start_band<kH>(d, y, weights, band);
        products_wait<0>();
        hold(d);
        uint32_t operand[8][4];  // the gradients of a, then those of g
#pragma unroll
        for (int g = 0; g < 2; g++) {
          const int c = band * kBand + 16 * g + 4 * own.q;
          float bias_a[4], bias_g[4];
          unpack(bias_a, load4(biases + c));
          unpack(bias_g, load4(biases + kH + c));
#pragma unroll
          for (int r = 0; r < 2; r++) {
            float v[4];
            unpack(v, grad[g][r]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int i = (2 * g + e / 2) * 4 + 2 * r + e % 2;
              const float s = sigmoid_of(fmaf(-kLog2e, d[16 + i], bias_g[e]));
              const float da = v[e] * s;
              const float dg = da * (d[i] + bias_a[e]) * (1.0f - s);
              operand[2 * g + e / 2][e % 2 * 2 + r] = to_tf32(da);
              operand[4 + 2 * g + e / 2][e % 2 * 2 + r] = to_tf32(dg);
            }
          }
        }
        barrier_wait(&full, parity);
        hold(operand);
        hold(dy);
        products_begin();
#pragma unroll
        for (int s = 0; s < 8; s++) multiply(dy, operand[s], at_step(pieces, s, kH), band > 0 || s > 0);
        products_end();
        products_wait<0>();
        hold(dy);
        if (threadIdx.x % 32 == 0) barrier_arrive(&empty);
      }
#pragma unroll
      for (int g = 0; g < kH / 16; g++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int at = (own.row + 8 * r) * kH + 16 * g + 4 * own.q;
          float v[4];
          unpack(v, load4(tile + at));
#pragma unroll
          for (int e = 0; e < 4; e++) v[e] *= dy[(2 * g + e / 2) * 4 + 2 * r + e % 2];
          if (first + own.row + 8 * r < M) store4(dz + first * kH + at, v);
        }
      }
    }
  }
}

template <int kH, bool kDrop>
__global__ void __launch_bounds__(4 * kH, 1)
    weight_grad_kernel(float* dw, float* db, const float* dout, const float* z, const float* image,
                       const float* bias, int64_t M, int64_t tiles_of_part, Dropout dropout) {
  constexpr int kTile = kSumRows * kH;
  extern __shared__ __align__(1024) float memory[];
  __shared__ float biases[2 * kH];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4;
  const int c = warp * 8 + lane / 4;                                     // whose sums this thread has
  const int h = warp % (kH / 32) * 32 + lane, octet = warp / (kH / 32);  // whose y it makes, in 8 rows
  float* const y_rows = memory + 2 * kH * kH;                            // twice (32 rows, H)
  float* const y_columns = y_rows + 2 * kTile;                           // twice (H, 32 rows)
  stage_weights<kH>(memory, biases, image, bias);
  const Mask<kDrop> mask(dropout);
  const uint64_t weights = image_descriptor(memory) + (threadIdx.x / 128 * 64 * kPanelBytes >> 4);
  const uint64_t rows_image = image_descriptor(y_rows), columns_image = image_descriptor(y_columns);

  const int64_t start = static_cast<int64_t>(blockIdx.x) * tiles_of_part * kSumRows;
  const int tiles = static_cast<int>(max(int64_t(0), min(tiles_of_part, ceil_div(M - start, kSumRows))));
  const int rows = static_cast<int>(min(M - start, tiles_of_part * kSumRows));  // of this part
  // Of what this thread loads. The first thread's are the part's first.
  const float* const z_own = z + (start + octet * 8) * kH + h;
  const float* const dout_own = dout + (start + 2 * q) * kH + c;
  float zs[8];
  const auto load_z = [&](int tile) {
    const float* const from = z_own + tile * kTile;
    const int left = rows - tile * kSumRows - octet * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) zs[i] = i < left ? __ldg(from + i * kH) : 0.0f;
  };
  const auto store_y = [&](int tile, int buffer) {
    const auto keep = mask.from((start + tile * kSumRows) * kH);
    // In columns rows lie as a product's result has them: even ones of eight first, then the odd ones.
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int m = octet * 8 + 2 * i + odd;
        y[i] = to_tf32(gelu(zs[2 * i + odd] * keep(m * kH + h)));
        y_rows[buffer * kTile + image_index(m, h, kSumRows)] = __uint_as_float(y[i]);
      }
      float* const to = y_columns + buffer * kTile + image_index(h, octet * 8 + odd * 4, kH);
      *reinterpret_cast<uint4*>(to) = uint4{y[0], y[1], y[2], y[3]};
    }
  };
  float sums[kH / 2];  // of channel c's weights, and of its gate's
  float sum_a = 0, sum_g = 0;
  uint32_t operand[4][4] = {};
  load_z(0);
  store_y(0, 0);
  load_z(1);
  fence_for_copies();
  __syncthreads();
  for (int tile = 0; tile < tiles; tile++) {
    const int buffer = tile & 1;
    if (threadIdx.x == 0) {
      prefetch_tile<kH>(z_own, (tile + 4) * kSumRows, rows, kSumRows);
      prefetch_tile<kH>(dout_own, (tile + 2) * kSumRows, rows, kSumRows);
    }
    float d[16], grad[8];
    const int left = rows - tile * kSumRows - 2 * q;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int m = i / 2 * 8 + i % 2;
      grad[i] = m < left ? __ldg(dout_own + tile * kTile + m * kH) : 0.0f;
    }
    const uint64_t buffered = buffer * kTile * sizeof(float) >> 4;
    products_begin();
#pragma unroll
    for (int s = 0; s < kH / 8; s++) {
      multiply(d, at_step(weights, s, 2 * kH), at_step(rows_image, s, kSumRows) + buffered, s > 0);
    }
    products_end();
    products_wait<1>();  // the sums of the tile before: its y may go
    hold(operand);
    __syncthreads();
    store_y(tile + 1, buffer ^ 1);
    fence_for_copies();
    load_z(tile + 2);
    const volatile float* const own_bias = biases + c;  // volatile: registers are short
    const float bias_a = own_bias[0], bias_g = own_bias[kH];
    products_wait<0>();
    hold(d);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float s = sigmoid_of(fmaf(-kLog2e, d[4 * j + 2 + i], bias_g));
        const float da = grad[2 * j + i] * s;
        const float dg = da * (d[4 * j + i] + bias_a) * (1.0f - s);
        sum_a += da;
        sum_g += dg;
        operand[j][2 * i] = to_tf32(da);
        operand[j][2 * i + 1] = to_tf32(dg);
      }
    }
    hold(operand);
    products_begin();
#pragma unroll
    for (int j = 0; j < 4; j++)
      multiply(sums, operand[j], at_step(columns_image, j, kH) + buffered, j > 0 || tile > 0);
    products_end();
    __syncthreads();
  }
  products_wait<0>();
  hold(sums);
  dw += static_cast<int64_t>(blockIdx.x) * 2 * kH * kH + c * kH;
  db += static_cast<int64_t>(blockIdx.x) * 2 * kH + c;
  const bool any = tiles > 0;
#pragma unroll
  for (int j = 0; j < kH / 8; j++) {
#pragma unroll
    for (int gate = 0; gate < 2; gate++) {
      const float2 pair{any ? sums[4 * j + 2 * gate] : 0.0f, any ? sums[4 * j + 2 * gate + 1] : 0.0f};
      *reinterpret_cast<float2*>(dw + gate * kH * kH + 8 * j + 2 * q) = pair;
    }
  }
#pragma unroll
  for (int i = 1; i < 4; i *= 2) {
    sum_a += __shfl_xor_sync(~0u, sum_a, i);
    sum_g += __shfl_xor_sync(~0u, sum_g, i);
  }
  if (q == 0) {
    db[0] = sum_a;
    db[kH] = sum_g;
  }
}

// -- on the host -----------------------------------------------------------------------------------------

// Parts of the rows in the weight gradient. They follow from M alone, and with them every bit of the result.
int64_t parts_of(int64_t M) {
  const int64_t parts = ceil_div(ceil_div(M, kSumRows), kTilesOfPart);
  return parts < kMostParts ? parts : kMostParts;
}

int64_t multiprocessors(int device) {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel kernel, int64_t blocks, int threads, size_t numbers, cudaStream_t stream,
                   Arguments... arguments) {
  const size_t bytes = numbers * sizeof(float);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

Dropout dropout_of(const int64_t* seed, float p) {
  const uint32_t threshold = static_cast<uint32_t>(p * 65536.0);
  return {seed, threshold, 1.0f / (1.0f - threshold / 65536.0f)};
}

template <int kH>
struct Mixing {
  static cudaError_t images(float* for_mixing, float* for_input, float* for_weight, const float* w,
                            cudaStream_t stream) {
    images_kernel<kH><<<2 * kH * kH / 256, 256, 0, stream>>>(for_mixing, for_input, for_weight, w);
    return cudaGetLastError();
  }
  static cudaError_t forward(float* out, const float* x, const float* z, const float* image,
                             const float* bias, int64_t M, Dropout dropout, int device, cudaStream_t stream) {
    const int64_t blocks = std::min(ceil_div(M, kForwardGroups * kRows), multiprocessors(device));
    return launch(dropout.threshold ? forward_kernel<kH, true> : forward_kernel<kH, false>, blocks,
                  128 * kForwardGroups, 2 * kH * kH + kForwardGroups * kRows * kH, stream, out, x, z, image,
                  bias, M, dropout);
  }
  static cudaError_t input_grad(float* dz, const float* dout, const float* z, const float* image,
                                const float* transposed, const float* bias, int64_t M, Dropout dropout,
                                int device, cudaStream_t stream) {
    const int64_t blocks = std::min(ceil_div(M, 2 * kRows), multiprocessors(device));
    return launch(dropout.threshold ? input_grad_kernel<kH, true> : input_grad_kernel<kH, false>, blocks, 384,
                  2 * kH * kH + 2 * kBand * kH + 2 * kRows * kH, stream, dz, dout, z, image, transposed, bias,
                  M, dropout);
  }
  static cudaError_t weight_grad(float* dw, float* db, float* partials, const float* dout, const float* z,
                                 const float* image, const float* bias, int64_t M, Dropout dropout,
                                 cudaStream_t stream) {
    const int64_t parts = parts_of(M), tiles_of_part = ceil_div(ceil_div(M, kSumRows), parts);
    float* const bias_partials = partials + parts * 2 * kH * kH;
    const cudaError_t error =
        launch(dropout.threshold ? weight_grad_kernel<kH, true> : weight_grad_kernel<kH, false>, parts,
               4 * kH, 2 * kH * kH + 4 * kSumRows * kH, stream, partials, bias_partials, dout, z, image, bias,
               M, tiles_of_part, dropout);
    if (error != cudaSuccess) return error;
    const cudaError_t summed = finish_weight_grad(dw, partials, parts, Shape{1, 2 * kH, kH, kH}, stream);
    if (summed != cudaSuccess) return summed;
    return finish_weight_grad(db, bias_partials, parts, Shape{1, 2 * kH, 1, 1}, stream);
  }
};

}  // namespace

// M > 0; each returns cudaErrorInvalidValue where H is neither 64 nor 128. p = 0 reads no seed.

EXPORT int ENTRY(images)(float* for_mixing, float* for_input, float* for_weight, const float* w, int H,
                         int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  return H == 128  ? Mixing<128>::images(for_mixing, for_input, for_weight, w, stream)
         : H == 64 ? Mixing<64>::images(for_mixing, for_input, for_weight, w, stream)
                   : cudaErrorInvalidValue;
}

EXPORT int ENTRY(forward)(float* out, const float* x, const float* z, const float* image, const float* bias,
                          int64_t M, int H, const int64_t* seed, float p, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const Dropout dropout = dropout_of(seed, p);
  return H == 128  ? Mixing<128>::forward(out, x, z, image, bias, M, dropout, device, stream)
         : H == 64 ? Mixing<64>::forward(out, x, z, image, bias, M, dropout, device, stream)
                   : cudaErrorInvalidValue;
}

EXPORT int ENTRY(input_grad)(float* dz, const float* dout, const float* z, const float* image,
                             const float* transposed, const float* bias, int64_t M, int H,
                             const int64_t* seed, float p, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const Dropout dropout = dropout_of(seed, p);
  return H == 128  ? Mixing<128>::input_grad(dz, dout, z, image, transposed, bias, M, dropout, device, stream)
         : H == 64 ? Mixing<64>::input_grad(dz, dout, z, image, transposed, bias, M, dropout, device, stream)
                   : cudaErrorInvalidValue;
}

// Numbers of the partial sums of dW and db.
EXPORT int64_t ENTRY(partials)(int64_t M, int H) { return parts_of(M) * (2 * H * H + 2 * H); }

EXPORT int ENTRY(weight_grad)(float* dw, float* db, float* partials, const float* dout, const float* z,
                              const float* image, const float* bias, int64_t M, int H, const int64_t* seed,
                              float p, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  const Dropout dropout = dropout_of(seed, p);
  return H == 128  ? Mixing<128>::weight_grad(dw, db, partials, dout, z, image, bias, M, dropout, stream)
         : H == 64 ? Mixing<64>::weight_grad(dw, db, partials, dout, z, image, bias, M, dropout, stream)
                   : cudaErrorInvalidValue;
}
