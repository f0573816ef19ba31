// Dropout by a hash of a number's place and a seed: nothing is stored, and what is computed again sees the
// same mask. The Python twin is cuda_ops/dropout.py.
#pragma once
#include <cstdint>

namespace {

struct Dropout {
  const int64_t* seed;
  uint32_t threshold;  // p 2^16; 0: no dropout
  float scale;         // 1 / (1 - p)
};

// 0 or 1 / (1 - p) for the number at an index. Two neighbours have 16 bits each of one hash, which is two
// rounds of xor, shift and multiply, after Wellons' lowbias32; the Python twin is cuda_ops/dropout.py.
template <bool kDrop>
class Mask {
 public:
  __device__ explicit Mask(const Dropout& dropout) : threshold_(dropout.threshold), scale_(dropout.scale) {
    if constexpr (kDrop) {
      const uint64_t seed = *dropout.seed;
      low_ = static_cast<uint32_t>(seed);
      high_ = static_cast<uint32_t>(seed >> 32);
    }
  }

  // Of the numbers from index `first` on, an even one, up to the next multiple of 2^33: tiles never straddle
  // one.
  class From {
   public:
    __device__ From(const Mask& mask, int64_t first)
        : mask_(mask),
          low_(static_cast<uint32_t>(first >> 1)),
          high_(mask.high_ ^ static_cast<uint32_t>(first >> 33)) {}

    // Of the numbers at an even offset and behind it.
    __device__ void pair(int offset, float& even, float& odd) const {
      even = odd = 1.0f;
      if constexpr (kDrop) {
        const uint32_t h = hash(offset);
        even = kept(h & 0xffff);
        odd = kept(h >> 16);
      }
    }
    __device__ float operator()(int offset) const {
      if constexpr (!kDrop) return 1.0f;
      const uint32_t h = hash(offset);
      return kept(offset & 1 ? h >> 16 : h & 0xffff);
    }

   private:
    __device__ uint32_t hash(int offset) const {
      uint32_t h = (low_ + (offset >> 1)) ^ mask_.low_;
      h ^= h >> 16;
      h *= 0x7feb352du;
      h ^= high_;
      h ^= h >> 15;
      h *= 0x846ca68bu;
      return h ^ h >> 16;
    }
    __device__ float kept(uint32_t bits) const { return bits >= mask_.threshold_ ? mask_.scale_ : 0.0f; }

    const Mask& mask_;
    uint32_t low_, high_;
  };
  __device__ From from(int64_t first) const { return From(*this, first); }

 private:
  uint32_t low_ = 0, high_ = 0, threshold_;
  float scale_;
};

}  // namespace
