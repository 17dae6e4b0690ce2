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

inline void score_with_tiles(const AttentionArgs& a, TileState& s) {
  const int D = a.head_dim;
  alignas(64) BFloat16 query[kTileRows * kMaxHeadDim];
  for (int r = 0; r < kTileRows; r++)
    for (int d = 0; d < D; d += kLanes)
      store(query + r * D + d, r < s.rows ? load(s.query + r * kMaxHeadDim + d) : FloatVec{});
  for (int page = 0; page <= s.last_page(); page++) {
    const BFloat16* keys = page_of<BFloat16>(a, a.key_pages, s.pages[page], s.kv_head);
    prefetch_page(page_of<BFloat16>(a, a.key_pages, s.pages[std::min(page + kAhead, s.last_page())], s.kv_head), D);
    _tile_zero(0);
    for (int d = 0; d < D; d += kTileK) {
      _tile_loadd(4, query + d, D * 2);
      _tile_loadd(6, keys + d * kPage, 64);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, s.scores.data() + page * kPage, s.stride * 4);
  }
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
    const BFloat16* values = page_of<BFloat16>(a, a.value_pages, s.pages[page], s.kv_head);
    prefetch_page(page_of<BFloat16>(a, a.value_pages, s.pages[std::min(page + kAhead, s.last_page())], s.kv_head), D);
    const int num_keys = s.longest - page * kPage;
    if (num_keys < kPage) values = clear_tail(values, D, num_keys, copy);
    values += first * 2;
    _tile_loadd(5, s.weights.data() + page * kPage, s.stride * 2);
    _tile_loadd(7, values, D * 4);
    _tile_dpbf16ps(0, 5, 7);
    _tile_loadd(7, values + 32, D * 4);
    _tile_dpbf16ps(1, 5, 7);
    if constexpr (Tiles == 4) {
      _tile_loadd(7, values + 64, D * 4);
      _tile_dpbf16ps(2, 5, 7);
      _tile_loadd(7, values + 96, D * 4);
      _tile_dpbf16ps(3, 5, 7);
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
    TileScope scope(true);
    TileState& s = tile_state();
    begin_tile<BFloat16>(a, tiles[i], s);
    score_with_tiles(a, s);
    weigh_tile(a, s);
    int d = 0;
    for (; d + 64 <= a.head_dim; d += 64) mix_with_tiles<4>(a, s, d);
    if (d < a.head_dim) mix_with_tiles<2>(a, s, d);
    end_tile<BFloat16>(a, tiles[i], s);
  });
}

}  // namespace dspark

#endif
