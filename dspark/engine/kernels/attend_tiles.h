// Attention by AMX tiles for bfloat16: sixteen query rows at once. Weights are rounded to bfloat16 before they meet
// the values, as the stock attention does.
#pragma once

#include "attention.h"

#if DSPARK_AMX

namespace dspark {

// Whether heads of this size fill tiles.
inline bool can_tile(const AttentionArgs& a) { return has_tiles() && a.head_dim % kTileK == 0; }

inline void prefetch_page(const BFloat16* page, int D) {
  for (int line = 0; line < D / 2; line++) __builtin_prefetch((const char*)page + line * 64);
}

inline const BFloat16* prefetched(const AttentionArgs& a, const TileState& s, const void* pages, int page) {
  const int ahead = std::min(page + kAhead, s.last_page());
  prefetch_page(page_of<BFloat16>(a, pages, s.pages[ahead], s.kv_head), a.head_dim);
  return page_of<BFloat16>(a, pages, s.pages[page], s.kv_head);
}

// Scores of N pages side by side, so that no product waits for the one before it.
template <int N>
inline void score_pages(const AttentionArgs& a, TileState& s, const BFloat16* query, int page) {
  const int D = a.head_dim;
  const BFloat16* keys[N];
  for (int i = 0; i < N; i++) keys[i] = prefetched(a, s, a.key_pages, page + i);
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
  for (int d = 0; d < D; d += kTileK) {
    _tile_loadd(4, query + d, D * 2);
    _tile_loadd(5, keys[0] + d * kPage, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (N > 1) {
      _tile_loadd(6, keys[1] + d * kPage, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (N > 2) {
      _tile_loadd(7, keys[2] + d * kPage, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (N > 3) {
      _tile_loadd(5, keys[3] + d * kPage, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  float* scores = s.scores.data() + page * kPage;
  _tile_stored(0, scores, s.stride * 4);
  if constexpr (N > 1) _tile_stored(1, scores + kPage, s.stride * 4);
  if constexpr (N > 2) _tile_stored(2, scores + 2 * kPage, s.stride * 4);
  if constexpr (N > 3) _tile_stored(3, scores + 3 * kPage, s.stride * 4);
}

inline void score_with_tiles(const AttentionArgs& a, TileState& s) {
  const TileScope scope(false);
  const int D = a.head_dim, num_pages = s.last_page() + 1;
  alignas(64) BFloat16 query[kTileRows * kMaxHeadDim];
  for (int r = 0; r < kTileRows; r++)
    for (int d = 0; d < D; d += kLanes)
      store(query + r * D + d, r < s.rows ? load(s.query + r * kMaxHeadDim + d) : FloatVec{});
  int page = 0;
  for (; page + 4 <= num_pages; page += 4) score_pages<4>(a, s, query, page);
  for (; page < num_pages; page++) score_pages<1>(a, s, query, page);
}

// Values of the last page with everything beyond the last key cleared: a weight of 0 would not stop a NaN.
inline const BFloat16* clear_tail(const BFloat16* values, int D, int num_keys, BFloat16* copy) {
  std::memcpy(copy, values, D * kPage * sizeof(BFloat16));
  for (int j = num_keys; j < kPage; j++)
    for (int d = 0; d < D; d++) copy[value_index<BFloat16>(D, d, j)] = BFloat16{0};
  return copy;
}

// Dimensions [first, first + 16 * Tiles) of the output, all keys.
template <int Tiles>
inline void mix_with_tiles(const AttentionArgs& a, TileState& s, int first) {
  const int D = a.head_dim;
  alignas(64) BFloat16 copy[kPage * kMaxHeadDim];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int page = 0; page <= s.last_page(); page++) {
    const BFloat16* values = prefetched(a, s, a.value_pages, page);
    const int num_keys = s.longest - page * kPage;
    if (num_keys < kPage) values = clear_tail(values, D, num_keys, copy);
    values += first * 2;
    _tile_loadd(4, s.weights.data() + page * kPage, s.stride * 2);
    _tile_loadd(5, values, D * 4);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, values + 32, D * 4);
    _tile_dpbf16ps(1, 4, 6);
    if constexpr (Tiles == 4) {
      _tile_loadd(7, values + 64, D * 4);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, values + 96, D * 4);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  float* out = s.out + first;
  _tile_stored(0, out, kMaxHeadDim * 4);
  _tile_stored(1, out + 16, kMaxHeadDim * 4);
  if constexpr (Tiles == 4) {
    _tile_stored(2, out + 32, kMaxHeadDim * 4);
    _tile_stored(3, out + 48, kMaxHeadDim * 4);
  }
}

inline void mix_tile_rows(const AttentionArgs& a, TileState& s) {
  const TileScope scope(true);
  int d = 0;
  for (; d + 64 <= a.head_dim; d += 64) mix_with_tiles<4>(a, s, d);
  if (d < a.head_dim) mix_with_tiles<2>(a, s, d);
}

inline void weigh_tile(const AttentionArgs& a, TileState& s) {
  if ((int64_t)s.weights.size() < kTileRows * s.stride) s.weights.resize(kTileRows * s.stride);
  for (int r = 0; r < kTileRows; r++) {
    BFloat16* weights = s.weights.data() + r * s.stride;
    const int kv_len = r < s.rows ? s.kv_len[r] : 0;
    s.inverse[r] = weigh_row(s.scores.data() + r * s.stride, weights, kv_len, a.scale);
    const int64_t written = (kv_len + kLanes - 1) / kLanes * kLanes;
    std::memset((void*)(weights + written), 0, (s.stride - written) * sizeof(BFloat16));
  }
}

inline void attend_tiles(const AttentionArgs& a) {
  write_rows<BFloat16>(a);
  const std::vector<Tile> tiles = make_tiles(a, kTileRows);
  Workers::shared().run(tiles.size(), a.num_threads, [&](int64_t i) {
    TileState& s = tile_state();
    begin_tile<BFloat16>(a, tiles[i], s);
    score_with_tiles(a, s);
    weigh_tile(a, s);
    mix_tile_rows(a, s);
    end_tile<BFloat16>(a, tiles[i], s);
  });
}

}  // namespace dspark

#endif
