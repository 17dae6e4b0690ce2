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

// A key [D] and a value [D] to their places in a page.
inline void put_key(float* page, int D, int offset, const float* key) {
  for (int d = 0; d < D; d++) page[key_index<float>(d, offset)] = key[d];
}
inline void put_key(BFloat16* page, int D, int offset, const BFloat16* key) {
  // Pairs stay pairs.
  for (int d = 0; d < D; d += 2) std::memcpy(page + key_index<BFloat16>(d, offset), key + d, 4);
}
inline void put_value(float* page, int D, int offset, const float* value) {
  std::memcpy(page + value_index<float>(D, 0, offset), value, D * sizeof(float));
}
inline void put_value(BFloat16* page, int D, int offset, const BFloat16* value) {
  // Number by number: another thread may be writing the neighbour, the other half of each word.
  for (int d = 0; d < D; d++) page[value_index<BFloat16>(D, d, offset)] = value[d];
}

// One of the two numbers of each word, a register of them; a bfloat16 is the upper half of a float.
template <int Odd>
inline RegisterVec half_of_words(const BFloat16* p) {
  RegisterWords words;
  std::memcpy(&words, p, sizeof words);
  return (RegisterVec)(Odd ? words & 0xffff0000u : words << 16);
}

inline RegisterVec load_register(const float* p) {
  RegisterVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Dimension d + Odd, d even, of a register of keys of a page, from key `first` on.
template <int Odd>
inline RegisterVec load_keys(const float* page, int d, int first) {
  return load_register(page + (d + Odd) * kPage + first);
}
template <int Odd>
inline RegisterVec load_keys(const BFloat16* page, int d, int first) {
  return half_of_words<Odd>(page + d * kPage + first * 2);
}

// A register of dimensions from d on of key j + Odd, j even.
template <int Odd>
inline RegisterVec load_values(const float* page, int D, int j, int d) {
  return load_register(page + (j + Odd) * D + d);
}
template <int Odd>
inline RegisterVec load_values(const BFloat16* page, int D, int j, int d) {
  return half_of_words<Odd>(page + j * D + d * 2);
}

}  // namespace dspark
