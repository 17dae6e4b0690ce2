// Sixteen-lane float vectors and the conversions all kernels share. Plain GCC vector extensions: they become
// AVX-512, AVX2 or SSE, whatever the machine has, with the same results for the same order of operations.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace dspark {

constexpr int kLanes = 16;
constexpr int kGroup = 8;  // the most rows that share loaded data while their sums stay in registers

typedef float FloatVec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint32_t WordVec __attribute__((vector_size(64)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));

// A vector that is one register of this machine, for loops that live by keeping sums in registers.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
#else
constexpr int kRegisterLanes = 8;
#endif
typedef float RegisterVec __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint32_t RegisterWords __attribute__((vector_size(4 * kRegisterLanes)));

struct BFloat16 {
  uint16_t bits;
};

inline FloatVec splat(float x) { return FloatVec{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

inline FloatVec load(const float* p) {
  FloatVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, FloatVec v) { std::memcpy(p, &v, sizeof v); }

// Round to nearest even; NaN stays NaN.
inline HalfVec to_half(FloatVec v) {
#if defined(__AVX512BF16__)
  return (HalfVec)_mm512_cvtneps_pbh((__m512)v);
#else
  WordVec word = (WordVec)v;
  WordVec rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  WordVec is_nan = (WordVec)(v != v);
  rounded = (is_nan & 0x7fc0u) | (~is_nan & rounded);
#if defined(__AVX512F__)
  return (HalfVec)_mm512_cvtepi32_epi16((__m512i)rounded);
#else
  return __builtin_convertvector(rounded, HalfVec);
#endif
#endif
}

inline FloatVec from_half(HalfVec half) {
#if defined(__AVX512F__)
  // One instruction that widens; the portable form below is split into four by the compiler.
  return (FloatVec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
#else
  return (FloatVec)(__builtin_convertvector(half, WordVec) << 16);
#endif
}

inline FloatVec load(const BFloat16* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  return from_half(half);
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
  return from_half(to_half(v));
}

// Lane sums and maxima in one fixed tree.
inline FloatVec turn_lanes(FloatVec v, int by) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return __builtin_shuffle(v, lane ^ by);
}

inline FloatVec larger(FloatVec a, FloatVec b) { return a > b ? a : b; }

inline float sum_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v += turn_lanes(v, by);
  return v[0];
}

inline float max_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v = larger(v, turn_lanes(v, by));
  return v[0];
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
  FloatVec power = (FloatVec)((WordVec)exponent << 23);
  return select(is_low, FloatVec{}, result * power);
}

// Calls f with the compile-time constant that equals `rows`, so that R sums can stay in registers.
template <class F>
inline void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
    case 7: return f(std::integral_constant<int, 7>());
    default: return f(std::integral_constant<int, kGroup>());
  }
}

}  // namespace dspark
