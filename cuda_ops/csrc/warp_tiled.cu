// warp_tiled: a warp owns its rows, reads each of them from memory once, and computes from registers.
//
// The idea
//   Cut a row into chunks of 16 steps and the filter into chunks of 16 taps. The output chunk o is then
//
//       y[o] = sum_c T(k[c]) (x[o-c-1], x[o-c])
//
//   with T(k[c]) a 16 x 32 Toeplitz matrix. A thread that holds the 16 sums, the 16 taps and the 32 inputs in
//   registers does 256 multiply-adds for the 32 numbers it loads: 8 for each, where naive does one half.
//   Going from c to c + 1, half of the inputs stay where they are. The first chunk has nothing before it
//   and costs 136. At L = 48 that makes 3 * 136 + 3 * 256 = 1176 multiply-adds a row: the least there are.
//   The input gradient is the same with time reversed, the weight gradient the same with gy for the
//   taps and its 16 sums standing on taps.
//
// Threads to data
//   A tile is the rows of up to 32 neighbouring channels of one sample: one run of memory, 6 KB at the
//   study's shape. A warp copies it to shared memory (cp.async), and lane r computes row r. Where 32 rows
//   do not fit, fewer do, and several lanes share a row, each with its own chunks. Warps never wait for one
//   another, but for the filters, which a block's four warps stage together when it starts.
//   forward, input gradient  an output chunk replaces the input chunk that nobody needs any more, and the
//                            tile is copied out as it came in. A block takes 16 samples and ends: on an
//                            H200 such blocks copied the same tiles in 0.198 ms, a loop over the whole batch
//                            in 0.200 to 0.206, presumably as reads and writes stay closer together.
//   weight gradient          the lane adds up its taps' sums over a whole part of the batch, in registers;
//                            each sample is summed first, which keeps the rounding error near that of one
//                            sample. The next sample is fetched meanwhile. One partial sum for 64 samples:
//                            4 bytes * H K * B/64, 1.6 % of x. Which samples meet in which order follows
//                            from B alone.
//
//   Rows too long for shared memory are read where they are; then the L1 cache does the staging.
//   The arithmetic is in toeplitz.cuh, the copying in tiles.cuh; here is who computes what, and when.
//   In half precision the multiply-adds would take twice as long as the bytes: for rows of 16, 32, 48 or 64
//   steps they are left to tensor cores, see matrix.cuh.
//
// A filter is padded with zeros to a whole chunk, and they are multiplied like taps: where K is no multiple
// of 16 and less than L, a NaN or an infinity in x reaches up to 15 outputs further than the filter does.
//
// Cost
//   The compulsory bytes: 4 (2 B H L) for a path, filters and partial sums aside.
#include <algorithm>
#include <type_traits>

#include "tiles.cuh"
#include "toeplitz.cuh"
#if defined(SCALAR_float16) || defined(SCALAR_bfloat16)
#define HALF_PRECISION
#include "matrix.cuh"
#endif

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowSamples = 16;   // of a block, forward and input gradient
constexpr int kPartSamples = 64;  // in a part of the batch, weight gradient
constexpr bool kDouble = sizeof(accum) == 8;
constexpr int kMostTapChunks = kDouble ? 2 : 4;  // whose sums a lane's registers hold in the weight gradient

// Blocks that a multiprocessor must hold: a bound on registers, as low as goes without spilling.
constexpr int kTapBlocks = kDouble ? 1 : 2;
template <bool kAligned, bool kStaged>
constexpr int row_blocks() {
  return kDouble ? 2 : sizeof(scalar) == 4 && kAligned && kStaged ? 6 : 5;
}

// How the host laid the work out; the same for every block.
struct Plan {
  int tile_rows;     // a power of two up to 32; the warp's lanes over this share a row
  int groups;        // of channels; group g has channels g * group_rows and on
  int group_rows;    // <= tile_rows
  int64_t parts;     // of the batch
  int stages;        // 2: the weight gradient fetches the next sample while it computes one
  int pitch;         // scalars from row to row in shared memory
  int tile_bytes;    // of one tile in shared memory
  int warp_bytes;    // of a warp's tiles in shared memory
  int filter_pitch;  // numbers from filter to filter in shared memory
  int64_t units;     // groups * parts, one for each block; in the weight gradient times the passes
};

// One tap of a filter, or the zero that pads it, to shared memory.
__device__ void copy_tap(accum* to, const scalar* from, bool inside) {
  if (!inside) {
    *to = 0;
  } else if constexpr (std::is_same_v<scalar, accum>) {
    __pipeline_memcpy_async(to, from, sizeof(accum));
  } else {
    *to = wide(*from);
  }
}

// A share of the batch and of the channels: samples first, first + step, ... and channels h0 to h0 + rows.
struct Share {
  int h0, rows;
  int64_t first, step;
};

__device__ Share share_of(int group, int64_t first, int64_t step, const Plan& plan, const Shape& shape) {
  const int h0 = group * plan.group_rows;
  return {h0, min(plan.group_rows, shape.H - h0), first, step};
}

template <Path kPath, bool kAligned, bool kStaged>
__global__ void __launch_bounds__(kThreads, row_blocks<kAligned, kStaged>())
    row_kernel(scalar* out, const scalar* in, const scalar* k, Shape shape, Plan plan) {
  extern __shared__ __align__(kUnit) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane % plan.tile_rows, first = lane / plan.tile_rows, sharing = 32 / plan.tile_rows;
  const int chunks = chunks_of(shape.L), taps = shape.taps(), rounds = (chunks + sharing - 1) / sharing;
  unsigned char* const buffer = memory + warp * plan.warp_bytes;
  accum* const filters = reinterpret_cast<accum*>(memory + kWarps * plan.warp_bytes);
  const int64_t part = blockIdx.x / plan.groups;
  const Share own =
      share_of(blockIdx.x % plan.groups, part * kWarps + warp, plan.parts * kWarps, plan, shape);

  const auto fetch = [&](int64_t b) {
    const int64_t tile = (b * shape.H + own.h0) * shape.L;
    if (b < shape.B) {
      copy_in<kAligned>(first_row<kAligned>(buffer, in + tile), in, tile, own.rows, shape.L, plan.pitch,
                        lane);
    }
    __pipeline_commit();
  };
  if constexpr (kStaged) {
    for (int h = warp; h < own.rows; h += kWarps) {
      const scalar* filter = k + static_cast<int64_t>(own.h0 + h) * shape.K;
      for (int j = lane; j < plan.filter_pitch; j += 32) {
        copy_tap(&filters[h * plan.filter_pitch + j], filter + j, j < taps);
      }
    }
    fetch(own.first);
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  for (int64_t b = own.first; b < shape.B; b += own.step) {
    const int64_t tile = (b * shape.H + own.h0) * shape.L;
    const void* filter;
    const scalar* source;
    scalar* shared = nullptr;
    if constexpr (kStaged) {
      shared = first_row<kAligned>(buffer, in + tile);
      __pipeline_wait_prior(0);
      __syncwarp();
      source = shared + row * plan.pitch;
      filter = filters + row * plan.filter_pitch;
    } else {
      source = in + tile + static_cast<int64_t>(row) * shape.L;
      filter = k + static_cast<int64_t>(own.h0 + row) * shape.K;
    }
    // The longest sums first: an output chunk overwrites the input that only itself and the chunks already
    // done have read.
    for (int round = 0; round < rounds; round++) {
      const int n = round * sharing + first;
      const int o = kPath == Path::kForward ? chunks - 1 - n : n;
      const bool busy = row < own.rows && n < chunks;
      Chunk sums;
      if (busy) {
        if constexpr (kPath == Path::kForward) {
          output_chunk<kAligned, kStaged>(sums, source, filter, o, shape.L, taps);
        } else {
          input_grad_chunk<kAligned, kStaged>(sums, source, filter, o, shape.L, taps);
        }
      }
      if constexpr (kStaged) {
        __syncwarp();
        if (busy) store<kAligned>(shared + row * plan.pitch, o * kChunk, shape.L, sums);
      } else {
        if (busy) store<kAligned>(out + (source - in), o * kChunk, shape.L, sums);
      }
    }
    if constexpr (kStaged) {
      __syncwarp();
      copy_out<kAligned>(out, tile, shared, own.rows, shape.L, plan.pitch, lane);
      __syncwarp();
      fetch(b + own.step);
    }
  }
}

// A lane holds the sums of up to kTapChunks chunks of taps in registers while its warp's samples pass. A unit
// is one warp's work: a share of the batch and of the channels, for the taps from `pass` on.
template <int kTapChunks, bool kAligned, bool kStaged>
__global__ void __launch_bounds__(kThreads, kTapBlocks)
    weight_grad_kernel(accum* partials, const scalar* gy, const scalar* x, Shape shape, Plan plan) {
  extern __shared__ __align__(kUnit) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = lane % plan.tile_rows, first = lane / plan.tile_rows, sharing = 32 / plan.tile_rows;
  const int taps = shape.taps(), chunks = chunks_of(taps);
  unsigned char* const buffers = memory + warp * plan.warp_bytes;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + warp; unit < plan.units;
       unit += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t part = unit / plan.groups % plan.parts;
    const int pass = static_cast<int>(unit / plan.groups / plan.parts) * kTapChunks * sharing;
    const Share own = share_of(static_cast<int>(unit % plan.groups), part, plan.parts, plan, shape);
    Chunk totals[kTapChunks];
#pragma unroll
    for (int n = 0; n < kTapChunks; n++) clear(totals[n]);

    const auto fetch = [&](int64_t b, int stage) {
      const int64_t tile = (b * shape.H + own.h0) * shape.L;
      unsigned char* const buffer = buffers + stage * 2 * plan.tile_bytes;
      if (b < shape.B) {
        copy_in<kAligned>(first_row<kAligned>(buffer, gy + tile), gy, tile, own.rows, shape.L, plan.pitch,
                          lane);
        copy_in<kAligned>(first_row<kAligned>(buffer + plan.tile_bytes, x + tile), x, tile, own.rows, shape.L,
                          plan.pitch, lane);
      }
      __pipeline_commit();
    };
    if constexpr (kStaged) fetch(own.first, 0);
    int stage = 0;
    for (int64_t b = own.first; b < shape.B; b += own.step) {
      const int64_t tile = (b * shape.H + own.h0) * shape.L;
      const scalar *gradient, *input;
      if constexpr (kStaged) {
        unsigned char* const buffer = buffers + stage * 2 * plan.tile_bytes;
        if (plan.stages == 2) {
          stage ^= 1;
          fetch(b + own.step, stage);
          __pipeline_wait_prior(1);
        } else {
          __pipeline_wait_prior(0);
        }
        __syncwarp();
        gradient = first_row<kAligned>(buffer, gy + tile) + row * plan.pitch;
        input = first_row<kAligned>(buffer + plan.tile_bytes, x + tile) + row * plan.pitch;
      } else {
        gradient = gy + tile + static_cast<int64_t>(row) * shape.L;
        input = x + tile + static_cast<int64_t>(row) * shape.L;
      }
#pragma unroll
      for (int n = 0; n < kTapChunks; n++) {
        const int c = pass + n * sharing + first;
        if (row < own.rows && c < chunks) {
          Chunk sums;
          tap_chunk<kAligned>(sums, gradient, input, c, shape.L);
#pragma unroll
          for (int i = 0; i < kChunk; i++) totals[n][i] += sums[i];
        }
      }
      if constexpr (kStaged) {
        __syncwarp();
        if (plan.stages == 1) fetch(b + own.step, 0);
      }
    }
    // Through shared memory once more, so that neighbouring lanes write neighbouring taps.
    accum* const sums = reinterpret_cast<accum*>(buffers);
    const int pitch = taps | 1;
    accum* const to = partials + (part * shape.H + own.h0) * taps;
#pragma unroll
    for (int n = 0; n < kTapChunks; n++) {
      const int j = (pass + n * sharing + first) * kChunk;
#pragma unroll
      for (int i = 0; i < kChunk; i++) {
        if (row < own.rows && j + i < taps) {
          if constexpr (kStaged) {
            sums[row * pitch + j + i] = totals[n][i];
          } else {
            to[row * taps + j + i] = totals[n][i];
          }
        }
      }
    }
    if constexpr (kStaged) {
      __syncwarp();
      const int j1 = min(taps, (pass + kTapChunks * sharing) * kChunk);
      for (int r = 0; r < own.rows; r++) {
        for (int j = pass * kChunk + lane; j < j1; j += 32) to[r * taps + j] = sums[r * pitch + j];
      }
      __syncwarp();
    }
  }
}

// -- on the host -----------------------------------------------------------------------------------------

bool aligned(Shape shape) { return static_cast<int64_t>(shape.L) * sizeof(scalar) % kUnit == 0; }

// Parts of the batch in the weight gradient. They follow from B alone, and with them every bit of the result.
// A small batch is cut finer, so that there is work for many warps.
int64_t parts_of(int64_t B) { return ceil_div(B, B < 256 * kPartSamples ? kPartSamples / 4 : kPartSamples); }

// The layout for a path. bytes: shared memory of a block; 0 where not even one row to a warp fits.
Plan plan_for(Path path, Shape shape, int device, size_t& bytes) {
  const int per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const int per_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  const int reserved = attribute(cudaDevAttrReservedSharedMemoryPerBlock, device);
  const bool weight_grad = path == Path::kWeightGrad;
  const int64_t row = static_cast<int64_t>(shape.L) * sizeof(scalar);
  const int64_t pitch = row + (row % (2 * kUnit) == 0 ? kUnit : 0);
  const int64_t tap_chunks = ceil_div(shape.taps(), kChunk);
  const int blocks = weight_grad ? 2 : 3;  // that a multiprocessor should have room for

  Plan plan;
  plan.parts = weight_grad ? parts_of(shape.B) : ceil_div(shape.B, kRowSamples);
  plan.filter_pitch = static_cast<int>(tap_chunks) * kChunk + kAccumPerUnit;
  plan.tile_rows = 1;
  while (plan.tile_rows < 32 && plan.tile_rows < shape.H) plan.tile_rows *= 2;
  if (weight_grad) {  // enough lanes to a row that their registers hold the sums of all its taps
    while (plan.tile_rows > 1 && tap_chunks > 32 / plan.tile_rows * kMostTapChunks) plan.tile_rows /= 2;
  }
  int64_t tile, of_warp, needed;
  const int64_t room = per_multiprocessor / blocks - reserved;
  const auto measure = [&](int stages) {
    const int64_t rows = plan.tile_rows;
    plan.stages = stages;
    tile = ceil_div(rows * pitch, kUnit) * kUnit + (aligned(shape) ? 0 : kUnit);
    const int64_t sums = ceil_div(rows * (shape.taps() | 1) * sizeof(accum), kUnit) * kUnit;
    const int64_t filters = rows * plan.filter_pitch * sizeof(accum);
    of_warp = weight_grad ? std::max(2 * stages * tile, sums) : tile;
    needed = kWarps * of_warp + (weight_grad ? 0 : filters);
  };
  for (measure(1); plan.tile_rows > 1 && needed > room; measure(1)) plan.tile_rows /= 2;
  plan.groups = static_cast<int>(ceil_div(shape.H, plan.tile_rows));
  plan.group_rows = static_cast<int>(ceil_div(shape.H, plan.groups));
  plan.units = plan.groups * plan.parts;
  // Fetching ahead takes twice the room. Where units have to wait for one another, more warps at once are
  // worth more.
  const int64_t at_once =
      static_cast<int64_t>(attribute(cudaDevAttrMultiProcessorCount, device)) * blocks * kWarps;
  if (weight_grad && plan.units <= at_once) {
    measure(2);
    if (needed > room) measure(1);
  }
  const bool staged = needed <= per_block;
  plan.pitch = static_cast<int>(aligned(shape) ? pitch / sizeof(scalar) : shape.L);
  plan.tile_bytes = staged ? static_cast<int>(tile) : 0;
  plan.warp_bytes = staged ? static_cast<int>(of_warp) : 0;
  bytes = staged ? needed : 0;
  return plan;
}

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel kernel, int64_t blocks, size_t bytes, cudaStream_t stream, Arguments... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

template <Path kPath>
cudaError_t launch_rows(scalar* out, const scalar* in, const scalar* k, Shape shape, int device,
                        cudaStream_t stream) {
#ifdef HALF_PRECISION
  if (matrix::fits(shape, device)) return matrix::launch_rows<kPath>(out, in, k, shape, stream);
#endif
  size_t bytes;
  const Plan plan = plan_for(kPath, shape, device, bytes);
  const auto kernel =
      bytes ? (aligned(shape) ? row_kernel<kPath, true, true> : row_kernel<kPath, false, true>)
            : (aligned(shape) ? row_kernel<kPath, true, false> : row_kernel<kPath, false, false>);
  return launch(kernel, plan.units, bytes, stream, out, in, k, shape, plan);
}

template <int kTapChunks, bool kStaged>
cudaError_t launch_weight_grad(accum* partials, const scalar* gy, const scalar* x, Shape shape, Plan plan,
                               size_t bytes, int64_t most_blocks, cudaStream_t stream) {
  const int taps_of_pass = kTapChunks * (32 / plan.tile_rows) * kChunk;
  plan.units *= ceil_div(shape.taps(), taps_of_pass);
  const auto kernel = aligned(shape) ? weight_grad_kernel<kTapChunks, true, kStaged>
                                     : weight_grad_kernel<kTapChunks, false, kStaged>;
  const int64_t blocks = ceil_div(plan.units, kWarps);
  return launch(kernel, grid_size(blocks, most_blocks), bytes, stream, partials, gy, x, shape, plan);
}

}  // namespace

EXPORT int ENTRY(forward)(scalar* y, const scalar* x, const scalar* k, Shape shape, int device,
                          cudaStream_t stream) {
  const DeviceGuard guard(device);
  return launch_rows<Path::kForward>(y, x, k, shape, device, stream);
}

EXPORT int ENTRY(input_grad)(scalar* gx, const scalar* gy, const scalar* k, Shape shape, int device,
                             cudaStream_t stream) {
  const DeviceGuard guard(device);
  return launch_rows<Path::kInputGrad>(gx, gy, k, shape, device, stream);
}

EXPORT int64_t ENTRY(weight_grad_partials)(Shape shape) { return parts_of(shape.B) * shape.H * shape.taps(); }

EXPORT int ENTRY(weight_grad)(scalar* gk, const scalar* gy, const scalar* x, accum* partials, Shape shape,
                              int64_t most_blocks, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
#ifdef HALF_PRECISION
  if (matrix::fits(shape, device)) {
    const cudaError_t error = matrix::launch_weight_grad(partials, gy, x, shape, most_blocks, stream);
    if (error != cudaSuccess) return error;
    return finish_weight_grad(gk, partials, matrix::parts_of(shape.B), shape, stream);
  }
#endif
  size_t bytes;
  const Plan plan = plan_for(Path::kWeightGrad, shape, device, bytes);
  const int64_t chunks_of_lane = ceil_div(ceil_div(shape.taps(), kChunk), 32 / plan.tile_rows);
  const auto run = bytes == 0                        ? launch_weight_grad<1, false>
                   : chunks_of_lane == 1             ? launch_weight_grad<1, true>
                   : chunks_of_lane < kMostTapChunks ? launch_weight_grad<kMostTapChunks - 1, true>
                                                     : launch_weight_grad<kMostTapChunks, true>;
  const cudaError_t error = run(partials, gy, x, shape, plan, bytes, most_blocks, stream);
  if (error != cudaSuccess) return error;
  return finish_weight_grad(gk, partials, plan.parts, shape, stream);
}
