// The order of numbers inside a page. Bfloat16 stands in pairs, dimension pairs for keys and key pairs for values,
// which is what tile and dot instructions multiply and what one load turns into two vectors of floats.
#pragma once

#include "simd.h"

namespace dspark {

constexpr int kPage = 16;  // keys per page, one vector of scores

template <class T>
inline int64_t key_index(int d, int offset);
template <class T>
inline int64_t value_index(int D, int d, int offset);

template <>
inline int64_t key_index<float>(int d, int offset) {
  return d * kPage + offset;
}

template <>
inline int64_t key_index<BFloat16>(int d, int offset) {
  return d / 2 * 2 * kPage + offset * 2 + d % 2;
}

template <>
inline int64_t value_index<float>(int D, int d, int offset) {
  return offset * D + d;
}

template <>
inline int64_t value_index<BFloat16>(int D, int d, int offset) {
  return offset / 2 * 2 * D + d * 2 + offset % 2;
}

struct VecPair {
  RegisterVec even, odd;
};

inline VecPair unpair(const BFloat16* p) {
  RegisterWords words;
  std::memcpy(&words, p, sizeof words);
  return {(RegisterVec)(words << 16), (RegisterVec)(words & 0xffff0000u)};
}

inline VecPair load_two(const float* even, const float* odd) {
  VecPair pair;
  std::memcpy(&pair.even, even, sizeof pair.even);
  std::memcpy(&pair.odd, odd, sizeof pair.odd);
  return pair;
}

// Dimensions d and d + 1, d even, of a register of keys of a page, from key `first` on.
inline VecPair load_keys(const float* page, int d, int first) {
  return load_two(page + d * kPage + first, page + (d + 1) * kPage + first);
}
inline VecPair load_keys(const BFloat16* page, int d, int first) { return unpair(page + d * kPage + first * 2); }

// A register of dimensions from d on of keys j and j + 1, j even.
inline VecPair load_values(const float* page, int D, int j, int d) {
  return load_two(page + j * D + d, page + (j + 1) * D + d);
}
inline VecPair load_values(const BFloat16* page, int D, int j, int d) { return unpair(page + j * D + d * 2); }

}  // namespace dspark
