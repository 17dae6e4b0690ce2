// Attention by vectors of floats, for any CPU and both dtypes: the query rows of a tile share each loaded key and value.
#pragma once

#include "attention.h"

namespace dspark {

// Rows of a tile: half as many registers hold fewer sums.
constexpr int kSharing = kRegisterLanes == kLanes ? kGroup : 6;

// Registers of a page of scores, and of as many dimensions of a value: what one number of a row is multiplied with.
constexpr int kParts = kPage / kRegisterLanes;

inline void load_parts(RegisterVec (&parts)[kParts], const float* p) {
  for (int part = 0; part < kParts; part++) std::memcpy(&parts[part], p + part * kRegisterLanes, sizeof parts[part]);
}

inline void store_parts(float* p, const RegisterVec (&parts)[kParts]) {
  for (int part = 0; part < kParts; part++) std::memcpy(p + part * kRegisterLanes, &parts[part], sizeof parts[part]);
}

// sums[r][part] += query r at dimension d + Odd times a page of keys.
template <int Odd, class T, int R>
inline __attribute__((always_inline)) void add_scores(const float* query, const T* keys, int d,
                                                      RegisterVec (&sums)[R][kParts]) {
  RegisterVec key[kParts];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; part++) key[part] = load_keys<Odd>(keys, d, part * kRegisterLanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) sums[r][part] += query[r * kMaxHeadDim + d + Odd] * key[part];
}

// scores[r] = query r . keys of one page; even and odd dimensions in two chains where there are registers for both.
template <class T, int R>
__attribute__((noinline)) void score_rows(const float* query, const T* keys, const T* ahead, int D, float* scores,
                                          int64_t stride) {
  constexpr int kChains = kParts == 1 ? 2 : 1;
  RegisterVec sums[kChains][R][kParts] = {};
  for (int d = 0; d < D; d += 2) {
    __builtin_prefetch(ahead + d * kPage);
    add_scores<0>(query, keys, d, sums[0]);
    add_scores<1>(query, keys, d, sums[kChains - 1]);
  }
  for (int r = 0; r < R; r++)
    for (int part = 0; part < kParts; part++) {
      RegisterVec sum = sums[0][r][part];
      if (kChains == 2) sum += sums[kChains - 1][r][part];
      std::memcpy(scores + r * stride + part * kRegisterLanes, &sum, sizeof sum);
    }
}

// sums[r][part] += weight of key j + Odd in row r times a stretch of its value; rows of weights are `stride` apart.
template <int Odd, class T, int R>
inline __attribute__((always_inline)) void add_values(const float* weights, int64_t stride, const T* values, int D,
                                                      int j, int d, RegisterVec (&sums)[R][kParts]) {
  RegisterVec value[kParts];
#pragma GCC unroll 2
  for (int part = 0; part < kParts; part++) value[part] = load_values<Odd>(values, D, j, d + part * kRegisterLanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) sums[r][part] += weights[r * stride + j + Odd] * value[part];
}

// out[r] = sum over the values of `pages` whole pages of weight * value. The sums of a stretch of dimensions stay in
// registers from the first page to the last.
template <class T, int R>
__attribute__((noinline)) void mix_pages(const AttentionArgs& a, const TileState& s, int pages, float* out) {
  const int D = a.head_dim;
  for (int d = 0; d < D; d += kParts * kRegisterLanes) {
    RegisterVec sums[R][kParts] = {};
    for (int page = 0; page < pages; page++) {
      const float* weights = s.scores.data() + page * kPage;
      const T* values = page_of<T>(a, a.value_pages, s.pages[page], s.kv_head);
      const T* ahead = page_of<T>(a, a.value_pages, s.pages[std::min(page + kAhead, s.last_page())], s.kv_head);
      for (int j = 0; j < kPage; j += 2) {
        __builtin_prefetch(ahead + j * D + d * 2);
        add_values<0>(weights, s.stride, values, D, j, d, sums);
        add_values<1>(weights, s.stride, values, D, j, d, sums);
      }
    }
    for (int r = 0; r < R; r++) store_parts(out + r * kMaxHeadDim + d, sums[r]);
  }
}

// out[r] += sum over values [first, end) of a page of weight * value.
template <class T, int R>
__attribute__((noinline)) void mix_rows(const float* weights, int64_t stride, const T* values, int D, int first, int end,
                                        float* out) {
  for (int d = 0; d < D; d += kParts * kRegisterLanes) {
    RegisterVec sums[R][kParts];
    for (int r = 0; r < R; r++) load_parts(sums[r], out + r * kMaxHeadDim + d);
    for (int j = first & ~1; j < end; j += 2) {
      // A value outside may be anything, and a weight of 0 would not stop a NaN.
      if (j >= first) add_values<0>(weights, stride, values, D, j, d, sums);
      if (j + 1 < end) add_values<1>(weights, stride, values, D, j, d, sums);
    }
    for (int r = 0; r < R; r++) store_parts(out + r * kMaxHeadDim + d, sums[r]);
  }
}

template <class T>
inline void score_tile(const AttentionArgs& a, TileState& s) {
  for (int page = 0; page <= s.last_page(); page++) {
    const T* keys = page_of<T>(a, a.key_pages, s.pages[page], s.kv_head);
    const T* ahead = page_of<T>(a, a.key_pages, s.pages[std::min(page + kAhead, s.last_page())], s.kv_head);
    float* scores = s.scores.data() + page * kPage;
    with_rows(s.rows, [&](auto rows) { score_rows<T, rows>(s.query, keys, ahead, a.head_dim, scores, s.stride); });
  }
}

template <class T>
inline void mix_tile(const AttentionArgs& a, TileState& s) {
  const int D = a.head_dim, whole = s.shortest / kPage;
  with_rows(s.rows, [&](auto rows) { mix_pages<T, rows>(a, s, whole, s.out); });
  for (int page = whole; page <= s.last_page(); page++) {
    const int start = page * kPage;
    const T* values = page_of<T>(a, a.value_pages, s.pages[page], s.kv_head);
    const float* weights = s.scores.data() + start;
    // What all rows see, then what only some do.
    const int common = std::clamp(s.shortest - start, 0, kPage);
    if (common > 0)
      with_rows(s.rows, [&](auto rows) { mix_rows<T, rows>(weights, s.stride, values, D, 0, common, s.out); });
    for (int r = 0; r < s.rows; r++) {
      const int end = std::min(s.kv_len[r] - start, kPage);
      if (end > common)
        mix_rows<T, 1>(weights + r * s.stride, s.stride, values, D, common, end, s.out + r * kMaxHeadDim);
    }
  }
}

template <class T>
inline void attend_lanes(const AttentionArgs& a) {
  write_rows<T>(a);
  const std::vector<Tile> tiles = make_tiles(a, kSharing);
  Workers::shared().run(tiles.size(), a.num_threads, [&](int64_t i) {
    TileState& s = tile_state();
    begin_tile<T>(a, tiles[i], s);
    score_tile<T>(a, s);
    for (int r = 0; r < s.rows; r++) {
      float* scores = s.scores.data() + r * s.stride;
      s.inverse[r] = weigh_row(scores, scores, s.kv_len[r], a.scale);
    }
    mix_tile<T>(a, s);
    end_tile<T>(a, tiles[i], s);
  });
}

}  // namespace dspark
