// Attention by vectors of floats, for any CPU and both dtypes: the query rows of a tile share each loaded key and value.
#pragma once

#include "attention.h"

namespace dspark {

// Rows of a tile: half as many registers hold fewer sums.
constexpr int kSharing = kRegisterLanes == kLanes ? kGroup : 6;

// scores[r] = query r . keys of one page; even and odd dimensions in two chains.
template <class T, int R>
__attribute__((noinline)) void score_rows(const float* query, const T* keys, const T* ahead, int D, float* scores,
                                          int64_t stride) {
  for (int first = 0; first < kPage; first += kRegisterLanes) {
    RegisterVec even[R] = {}, odd[R] = {};
    for (int d = 0; d < D; d += 2) {
      if (first == 0) __builtin_prefetch(ahead + d * kPage);
      const VecPair k = load_keys(keys, d, first);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        even[r] += query[r * kMaxHeadDim + d] * k.even;
        odd[r] += query[r * kMaxHeadDim + d + 1] * k.odd;
      }
    }
    for (int r = 0; r < R; r++) {
      const RegisterVec sum = even[r] + odd[r];
      std::memcpy(scores + r * stride + first, &sum, sizeof sum);
    }
  }
}

// out[r] += sum over the first num_keys values of weight * value; weights are [R, kPage].
template <class T, int R>
__attribute__((noinline)) void mix_rows(const float* weights, const T* values, const T* ahead, int D, int num_keys,
                                        float* out) {
  for (int d = 0; d < D; d += kRegisterLanes) {
    RegisterVec sum[R];
    for (int r = 0; r < R; r++) std::memcpy(&sum[r], out + r * kMaxHeadDim + d, sizeof sum[r]);
    for (int j = 0; j < num_keys; j += 2) {
      __builtin_prefetch(ahead + j * D + d * 2);
      const VecPair v = load_values(values, D, j, d);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sum[r] += weights[r * kPage + j] * v.even;
      // A value beyond the last key may be anything, and a weight of 0 would not stop a NaN.
      if (j + 1 < num_keys)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sum[r] += weights[r * kPage + j + 1] * v.odd;
    }
    for (int r = 0; r < R; r++) std::memcpy(out + r * kMaxHeadDim + d, &sum[r], sizeof sum[r]);
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
  const int D = a.head_dim;
  std::memset(s.out, 0, s.rows * kMaxHeadDim * sizeof(float));
  for (int page = 0, start = 0; start < s.longest; page++, start += kPage) {
    const T* values = page_of<T>(a, a.value_pages, s.pages[page], s.kv_head);
    const T* ahead = page_of<T>(a, a.value_pages, s.pages[std::min(page + kAhead, s.last_page())], s.kv_head);
    alignas(64) float weights[kSharing * kPage];
    for (int r = 0; r < s.rows; r++) store(weights + r * kPage, load(s.scores.data() + r * s.stride + start));
    if (start + kPage <= s.shortest || s.longest == s.shortest) {
      const int num_keys = std::min(kPage, s.longest - start);
      with_rows(s.rows, [&](auto rows) { mix_rows<T, rows>(weights, values, ahead, D, num_keys, s.out); });
      continue;
    }
    for (int r = 0; r < s.rows; r++) {
      const int num_keys = std::clamp(s.kv_len[r] - start, 0, kPage);
      mix_rows<T, 1>(weights + r * kPage, values, ahead, D, num_keys, s.out + r * kMaxHeadDim);
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
