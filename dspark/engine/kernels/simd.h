// Sixteen-lane float vectors and the conversions all kernels share. Plain GCC vector extensions: they become
// AVX-512, AVX2 or SSE, whatever the machine has, with the same results for the same order of operations.
#pragma once

#include <cstdint>
#include <cstring>

namespace dspark {

constexpr int kLanes = 16;

typedef float FloatVec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint32_t WordVec __attribute__((vector_size(64)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));

struct BFloat16 {
  uint16_t bits;
};

inline FloatVec splat(float x) { return FloatVec{} + x; }

inline FloatVec load(const float* p) {
  FloatVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline FloatVec load(const BFloat16* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  WordVec word = __builtin_convertvector(half, WordVec) << 16;
  FloatVec v;
  std::memcpy(&v, &word, sizeof v);
  return v;
}

inline void store(float* p, FloatVec v) { std::memcpy(p, &v, sizeof v); }

// Round to nearest even; NaN stays NaN.
inline HalfVec to_half(FloatVec v) {
  WordVec word;
  std::memcpy(&word, &v, sizeof word);
  WordVec rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  WordVec is_nan = (WordVec)(v != v);
  rounded = (is_nan & 0x7fc0u) | (~is_nan & rounded);
  return __builtin_convertvector(rounded, HalfVec);
}

inline void store(BFloat16* p, FloatVec v) {
  HalfVec half = to_half(v);
  std::memcpy(p, &half, sizeof half);
}

// The value a tensor of type T would hold: where the model's own code rounds, so do we.
template <class T>
inline FloatVec round_as(FloatVec v);

template <>
inline FloatVec round_as<float>(FloatVec v) {
  return v;
}

template <>
inline FloatVec round_as<BFloat16>(FloatVec v) {
  WordVec word = __builtin_convertvector(to_half(v), WordVec) << 16;
  FloatVec rounded;
  std::memcpy(&rounded, &word, sizeof rounded);
  return rounded;
}

// Lane sums and maxima in one fixed tree.
inline float sum_lanes(FloatVec v) {
  float x[kLanes];
  store(x, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x[i] += x[i + width];
  return x[0];
}

inline float max_lanes(FloatVec v) {
  float x[kLanes];
  store(x, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  return x[0];
}

inline FloatVec select(IntVec mask, FloatVec yes, FloatVec no) { return mask ? yes : no; }

// e^x with a relative error below 2 ulp; 0 below -87, finite above 88.
inline FloatVec exp_lanes(FloatVec x) {
  const FloatVec low = splat(-87.0f), high = splat(88.0f);
  IntVec is_low = x < low;
  FloatVec y = select(is_low, low, x);
  y = select(y > high, high, y);
  const float kRound = 12582912.0f;  // adding 1.5 * 2^23 leaves the nearest integer in the low bits
  FloatVec shifted = y * 1.44269504088896341f + kRound;
  FloatVec n = shifted - kRound;
  FloatVec r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  FloatVec poly = r * 1.9875691500e-4f + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  FloatVec result = poly * (r * r) + r + 1.0f;
  IntVec exponent = __builtin_convertvector(n, IntVec) + 127;
  WordVec bits = (WordVec)exponent << 23;
  FloatVec power;
  std::memcpy(&power, &bits, sizeof power);
  return select(is_low, FloatVec{}, result * power);
}

}  // namespace dspark
