// GELU with its slope, and the sigmoid, in a dozen instructions each: exponential and reciprocal are those of
// the special function unit, off by two units in the last place.
#pragma once
#include <cstdint>

namespace {

constexpr float kLog2e = 1.4426950408889634f;

__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / (1 + exp(-x)), from -x log2(e).
__device__ float sigmoid_of(float scaled) { return reciprocal(1.0f + exp2_fast(scaled)); }

// GELU(x) = x P(x), P the normal distribution, and its slope P(x) + x p(x). The tail beyond |x| is formula
// 7.1.26 of Abramowitz and Stegun: off by 8e-8 at most.
__device__ float gelu(float x, float& slope) {
  const float density = exp2_fast(x * x * (-0.5f * kLog2e));  // times sqrt(2 pi)
  const float t = reciprocal(fmaf(0.23164189f, fabsf(x), 1.0f));
  float p = fmaf(t, 0.530702714f, -0.726576013f);
  p = fmaf(t, p, 0.710706871f);
  p = fmaf(t, p, -0.142248368f);
  p = fmaf(t, p, 0.127414796f);
  const float tail = p * t * density;
  const float below = fmaf(-fabsf(x) * 0.3989422804014327f, density, tail);  // the slope at -|x|
  slope = x >= 0 ? 1.0f - below : below;
  return fmaf(-fabsf(x), tail, fmaxf(x, 0.0f));
}
__device__ float gelu(float x) {
  float unused;
  return gelu(x, unused);
}

}  // namespace
