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

// A vector that is one register of this machine.
#if defined(__AVX512F__)
constexpr int kRegisterLanes = 16;
#else
constexpr int kRegisterLanes = 8;
#endif
typedef float RegisterVec __attribute__((vector_size(4 * kRegisterLanes)));
typedef int32_t RegisterInts __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint32_t RegisterWords __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));

// Sixteen lanes in as many registers as they need. GCC keeps its own vectors that are longer than a register in
// memory, which made the norms, softmaxes and activations of a step several times slower.
template <class Register>
struct Lanes {
  static constexpr int kRegisters = kLanes / kRegisterLanes;
  Register part[kRegisters];

  auto operator[](int lane) const { return part[lane / kRegisterLanes][lane % kRegisterLanes]; }
};

using FloatVec = Lanes<RegisterVec>;
using IntVec = Lanes<RegisterInts>;
using WordVec = Lanes<RegisterWords>;

template <class Result, class F, class... Vectors>
inline __attribute__((always_inline)) Result by_register(const F& f, const Vectors&... vectors) {
  Result result;
#pragma GCC unroll 2
  for (int i = 0; i < Result::kRegisters; i++) result.part[i] = f(vectors.part[i]...);
  return result;
}

#define DSPARK_LANES_OPERATOR(op)                                                                      \
  template <class R>                                                                                   \
  inline Lanes<R> operator op(const Lanes<R>& a, const Lanes<R>& b) {                                  \
    return by_register<Lanes<R>>([](R x, R y) { return x op y; }, a, b);                               \
  }                                                                                                    \
  template <class R, class Number, class = std::enable_if_t<std::is_arithmetic<Number>::value>>        \
  inline Lanes<R> operator op(const Lanes<R>& a, Number b) {                                           \
    return by_register<Lanes<R>>([b](R x) { return x op b; }, a);                                      \
  }                                                                                                    \
  template <class R, class Number, class = std::enable_if_t<std::is_arithmetic<Number>::value>>        \
  inline Lanes<R> operator op(Number a, const Lanes<R>& b) {                                           \
    return by_register<Lanes<R>>([a](R x) { return a op x; }, b);                                      \
  }
DSPARK_LANES_OPERATOR(+)
DSPARK_LANES_OPERATOR(-)
DSPARK_LANES_OPERATOR(*)
DSPARK_LANES_OPERATOR(/)
#undef DSPARK_LANES_OPERATOR

template <class R>
inline Lanes<R> operator-(const Lanes<R>& a) {
  return by_register<Lanes<R>>([](R x) { return -x; }, a);
}

// All bits of the lanes where it holds.
inline IntVec operator>(const FloatVec& a, const FloatVec& b) {
  return by_register<IntVec>([](RegisterVec x, RegisterVec y) { return (RegisterInts)(x > y); }, a, b);
}

template <class R>
inline Lanes<R>& operator+=(Lanes<R>& a, const Lanes<R>& b) {
  return a = a + b;
}

struct BFloat16 {
  uint16_t bits;
};

inline FloatVec splat(float x) {
  return by_register<FloatVec>([x](RegisterVec zero) { return zero + x; }, FloatVec{});
}

// 0, 1, ... 15.
inline IntVec lane_numbers() {
  IntVec numbers;
  for (int i = 0; i < kLanes; i++) numbers.part[i / kRegisterLanes][i % kRegisterLanes] = i;
  return numbers;
}

// Register by register: GCC copies more than one at a time in pieces of 16 bytes, through memory.
inline FloatVec load(const float* p) {
  FloatVec v;
#pragma GCC unroll 2
  for (int i = 0; i < FloatVec::kRegisters; i++) std::memcpy(&v.part[i], p + i * kRegisterLanes, sizeof v.part[i]);
  return v;
}

inline void store(float* p, FloatVec v) {
#pragma GCC unroll 2
  for (int i = 0; i < FloatVec::kRegisters; i++) std::memcpy(p + i * kRegisterLanes, &v.part[i], sizeof v.part[i]);
}

// The low half of each word; the upper halves are zero. The compiler's own conversion takes words one by one.
inline HalfVec narrow(WordVec words) {
#if defined(__AVX512F__)
  return (HalfVec)_mm512_cvtepi32_epi16((__m512i)words.part[0]);
#elif defined(__AVX2__)
  const __m256i low = (__m256i)words.part[0], high = (__m256i)words.part[1];
  return (HalfVec)_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
#else
  HalfVec half;
  for (int i = 0; i < kLanes; i++) half[i] = (uint16_t)words[i];
  return half;
#endif
}

// The bfloat16 of each lane in the upper half of its word, and what is below: to nearest even; NaN stays NaN.
inline RegisterWords rounded_words(RegisterVec x) {
  const RegisterWords word = (RegisterWords)x, is_nan = (RegisterWords)(x != x);
  const RegisterWords rounded = word + 0x7fffu + ((word >> 16) & 1u);
  return (is_nan & 0x7fc00000u) | (~is_nan & rounded);
}

inline HalfVec to_half(FloatVec v) {
#if defined(__AVX512BF16__)
  return (HalfVec)_mm512_cvtneps_pbh((__m512)v.part[0]);
#else
  return narrow(by_register<WordVec>([](RegisterVec x) { return rounded_words(x) >> 16; }, v));
#endif
}

inline FloatVec from_half(HalfVec half) {
#if defined(__AVX512F__)
  return {(RegisterVec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16)};
#elif defined(__AVX2__)
  const __m256i words = (__m256i)half;
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1));
  return {(RegisterVec)_mm256_slli_epi32(low, 16), (RegisterVec)_mm256_slli_epi32(high, 16)};
#else
  WordVec words;
  for (int i = 0; i < kLanes; i++) words.part[i / kRegisterLanes][i % kRegisterLanes] = (uint32_t)half[i] << 16;
  return by_register<FloatVec>([](RegisterWords x) { return (RegisterVec)x; }, words);
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
#if defined(__AVX512BF16__)
  return from_half(to_half(v));
#else
  return by_register<FloatVec>([](RegisterVec x) { return (RegisterVec)(rounded_words(x) & 0xffff0000u); }, v);
#endif
}

// Eight lanes of each of two places.
inline FloatVec load_halves(const float* low, const float* high) {
  FloatVec v;
  std::memcpy(&v.part[0], low, 32);
  std::memcpy((char*)&v.part[FloatVec::kRegisters - 1] + sizeof v.part[0] - 32, high, 32);
  return v;
}

inline void store_halves(float* low, float* high, FloatVec v) {
  std::memcpy(low, &v.part[0], 32);
  std::memcpy(high, (char*)&v.part[FloatVec::kRegisters - 1] + sizeof v.part[0] - 32, 32);
}

// Lane sums and maxima in one fixed tree.
inline FloatVec turn_lanes(FloatVec v, int by) {
  FloatVec turned;
#pragma GCC unroll 2
  for (int i = 0; i < FloatVec::kRegisters; i++) {
    const RegisterInts lane = lane_numbers().part[0];
    turned.part[i] = by < kRegisterLanes ? __builtin_shuffle(v.part[i], lane ^ by) : v.part[i ^ (by / kRegisterLanes)];
  }
  return turned;
}

inline FloatVec larger(FloatVec a, FloatVec b) {
  return by_register<FloatVec>([](RegisterVec x, RegisterVec y) { return x > y ? x : y; }, a, b);
}

// All bits of the first `count` lanes.
inline IntVec first_lanes(int count) {
  return by_register<IntVec>([count](RegisterInts x) { return (RegisterInts)(x < count); }, lane_numbers());
}

inline float sum_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v += turn_lanes(v, by);
  return v[0];
}

inline float max_lanes(FloatVec v) {
  for (int by = kLanes / 2; by > 0; by /= 2) v = larger(v, turn_lanes(v, by));
  return v[0];
}

template <class R>
inline Lanes<R> select(const IntVec& mask, const Lanes<R>& yes, const Lanes<R>& no) {
  return by_register<Lanes<R>>(
      [](RegisterInts m, R y, R n) { return (R)((m & (RegisterInts)y) | (~m & (RegisterInts)n)); }, mask, yes, no);
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
