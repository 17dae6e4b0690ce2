// Sixteen-lane float vectors and the conversions all kernels share. Plain GCC vector extensions: they become
// AVX-512, AVX2 or SSE, whatever the machine has, with the same results for the same order of operations.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__)
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
typedef int32_t RegisterInts __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint32_t RegisterWords __attribute__((vector_size(4 * kRegisterLanes)));

inline RegisterVec register_of(const FloatVec& v, int i) {
  RegisterVec part;
  std::memcpy(&part, (const char*)&v + i * sizeof part, sizeof part);
  return part;
}

inline RegisterInts register_of(const IntVec& v, int i) { return (RegisterInts)register_of((const FloatVec&)v, i); }

// f over the registers of the vectors. The compiler splits arithmetic on longer vectors by itself, but compares
// and selects lane by lane.
template <class Result, class F, class... Vectors>
inline Result by_register(const F& f, const Vectors&... vectors) {
  Result result;
#pragma GCC unroll 2
  for (int i = 0; i < kLanes / kRegisterLanes; i++) {
    const auto part = f(register_of(vectors, i)...);
    std::memcpy((char*)&result + i * sizeof part, &part, sizeof part);
  }
  return result;
}

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

// The low half of each word; the upper halves are zero. The compiler's own conversion takes words one by one.
inline HalfVec narrow(WordVec words) {
#if defined(__AVX512F__)
  return (HalfVec)_mm512_cvtepi32_epi16((__m512i)words);
#elif defined(__AVX2__)
  __m256i low, high;
  std::memcpy(&low, &words, sizeof low);
  std::memcpy(&high, (const char*)&words + sizeof low, sizeof high);
  return (HalfVec)_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
#else
  return __builtin_convertvector(words, HalfVec);
#endif
}

// Round to nearest even; NaN stays NaN.
inline HalfVec to_half(FloatVec v) {
#if defined(__AVX512BF16__)
  return (HalfVec)_mm512_cvtneps_pbh((__m512)v);
#else
  return narrow(by_register<WordVec>(
      [](RegisterVec x) {
        const RegisterWords word = (RegisterWords)x, is_nan = (RegisterWords)(x != x);
        const RegisterWords rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
        return (is_nan & 0x7fc0u) | (~is_nan & rounded);
      },
      v));
#endif
}

inline FloatVec from_half(HalfVec half) {
#if defined(__AVX512F__)
  // One instruction that widens; the portable form below is split into four by the compiler.
  return (FloatVec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
#elif defined(__AVX2__)
  __m128i parts[2];
  std::memcpy(parts, &half, sizeof parts);
  const __m256i words[2] = {_mm256_cvtepu16_epi32(parts[0]), _mm256_cvtepu16_epi32(parts[1])};
  WordVec wide;
  std::memcpy(&wide, words, sizeof wide);
  return (FloatVec)(wide << 16);
#else
  return (FloatVec)(__builtin_convertvector(half, WordVec) << 16);
#endif
}

inline FloatVec load(const BFloat16* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  return from_half(half);
}

// One number, where a vector would reach beyond the end.
template <class T>
inline float load_one(const T* p) {
  T padded[kLanes] = {};
  padded[0] = *p;
  return load(padded)[0];
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

inline FloatVec larger(FloatVec a, FloatVec b) {
  return by_register<FloatVec>([](RegisterVec x, RegisterVec y) { return x > y ? x : y; }, a, b);
}

inline IntVec is_greater(FloatVec a, FloatVec b) {
  return by_register<IntVec>([](RegisterVec x, RegisterVec y) { return (RegisterInts)(x > y); }, a, b);
}

// All bits of the first `count` lanes.
inline IntVec first_lanes(int count) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return by_register<IntVec>([count](RegisterInts x) { return (RegisterInts)(x < count); }, lane);
}

inline float sum_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v += turn_lanes(v, by);
  return v[0];
}

inline float max_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v = larger(v, turn_lanes(v, by));
  return v[0];
}

inline IntVec select(IntVec mask, IntVec yes, IntVec no) { return (mask & yes) | (~mask & no); }

inline FloatVec select(IntVec mask, FloatVec yes, FloatVec no) {
  return (FloatVec)select(mask, (IntVec)yes, (IntVec)no);
}

inline RegisterVec exp_register(RegisterVec x) {
  const RegisterInts is_low = (RegisterInts)(x < -87.0f);
  RegisterVec y = x < -87.0f ? RegisterVec{} - 87.0f : x;
  y = y > 88.0f ? RegisterVec{} + 88.0f : y;
  const float kRound = 12582912.0f;  // adding 1.5 * 2^23 leaves the nearest integer in the low bits
  const RegisterVec n = (y * 1.44269504088896341f + kRound) - kRound;
  RegisterVec r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  RegisterVec poly = r * 1.9875691500e-4f + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  const RegisterVec result = poly * (r * r) + r + 1.0f;
  const RegisterInts exponent = __builtin_convertvector(n, RegisterInts) + 127;
  const RegisterVec power = (RegisterVec)((RegisterWords)exponent << 23);
  return (RegisterVec)(~is_low & (RegisterInts)(result * power));
}

// e^x with a relative error below 2 ulp; 0 below -87, finite above 88.
inline FloatVec exp_lanes(FloatVec x) { return by_register<FloatVec>(exp_register, x); }

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
