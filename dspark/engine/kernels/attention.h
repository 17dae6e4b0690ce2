// What both ways of computing ragged paged attention share: arguments, query and key heads, pages, softmax.
//
// Exactness: a row's output depends on its own query and keys only. Keys are taken page by page from the start of
// the request, whatever the number of rows, tiles or threads, and every sum has one fixed order.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <vector>

#include "amx.h"
#include "pages.h"
#include "simd.h"
#include "workers.h"

namespace dspark {

constexpr int kMaxHeadDim = 256;
constexpr int kAhead = 3;       // pages stand anywhere in memory, so no hardware prefetcher finds the next one

struct AttentionArgs {
  const void* query;   // row t at query + t * query_stride: [Hq, D]
  const void* key;     // [Hkv, D] per row
  const void* value;   // [Hkv, D] per row
  void* out;           // [T, Hq, D]
  void* key_pages;     // [num_pages, Hkv, D * kPage], see pages.h
  void* value_pages;   // [num_pages, Hkv, D * kPage]
  const int64_t* slots;        // [T]
  const int32_t* row_request;  // [T]
  const int32_t* page_table;   // [R, table_width]
  const int32_t* kv_lens;      // [T]
  const float* cos;            // [T, D / 2], null: query and key are rotated already
  const float* sin;            // [T, D / 2]
  const void* query_norm;      // [D], null: no norm over head_dim
  const void* key_norm;        // [D]
  int64_t query_stride, key_stride, value_stride;  // in elements
  int64_t num_rows, table_width;
  int32_t num_heads, num_kv_heads, head_dim, num_threads;
  float scale, norm_eps;
};

struct Tile {
  int32_t first_row;  // row of the batch where the request's rows begin
  int32_t kv_head;
  int32_t begin, end;  // of the flattened (row, head of the group) index
};

// Head norm and rotation with the roundings of the model's own code, into floats.
template <class T>
inline void load_head(const AttentionArgs& a, const T* source, const T* norm, int64_t row, float* out) {
  const int D = a.head_dim, half = D / 2;
  for (int d = 0; d < D; d += kLanes) store(out + d, load(source + d));
  if (norm) {
    FloatVec squares = {};
    for (int d = 0; d < D; d += kLanes) squares += load(out + d) * load(out + d);
    float inverse = 1.0f / std::sqrt(sum_lanes(squares) / D + a.norm_eps);
    for (int d = 0; d < D; d += kLanes)
      store(out + d, round_as<T>(round_as<T>(load(out + d) * inverse) * load(norm + d)));
  }
  if (!a.cos) return;
  const float *cos = a.cos + row * half, *sin = a.sin + row * half;
  float rotated[kMaxHeadDim];
  for (int d = 0; d < half; d += kLanes / 2) {
    // Both halves of eight lanes at once: half may be no multiple of sixteen.
    const FloatVec own = load_halves(out + d, out + half + d), other = load_halves(out + half + d, out + d);
    const FloatVec c = load_halves(cos + d, cos + d), s = load_halves(sin + d, sin + d);
    const FloatVec signed_s = select(first_lanes(kLanes / 2), -s, s);
    store_halves(rotated + d, rotated + half + d, round_as<T>(round_as<T>(own * c) + round_as<T>(other * signed_s)));
  }
  std::memcpy(out, rotated, D * sizeof(float));
}

template <class T>
inline T* page_of(const AttentionArgs& a, const void* pages, int64_t page, int kv_head) {
  return (T*)pages + (page * a.num_kv_heads + kv_head) * a.head_dim * kPage;
}

template <class T>
inline void write_row(const AttentionArgs& a, int64_t row, int kv_head) {
  const int D = a.head_dim, offset = a.slots[row] % kPage;
  const int64_t page = a.slots[row] / kPage;
  float head[kMaxHeadDim];
  T rounded[kMaxHeadDim];
  load_head<T>(a, (const T*)a.key + row * a.key_stride + kv_head * D, (const T*)a.key_norm, row, head);
  for (int d = 0; d < D; d += kLanes) store(rounded + d, load(head + d));
  put_key(page_of<T>(a, a.key_pages, page, kv_head), D, offset, rounded);
  const T* value = (const T*)a.value + row * a.value_stride + kv_head * D;
  put_value(page_of<T>(a, a.value_pages, page, kv_head), D, offset, value);
}

// Keys and values of all rows into their pages.
template <class T>
inline void write_rows(const AttentionArgs& a) {
  constexpr int64_t kRowsPerPiece = 16;
  run_ranges(a.num_rows, kRowsPerPiece, a.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      for (int head = 0; head < a.num_kv_heads; head++) write_row<T>(a, row, head);
  });
}

// Scratch of one thread for the query rows of one tile; kept, as it is large.
struct TileState {
  alignas(64) float query[kTileRows * kMaxHeadDim];
  alignas(64) float out[kTileRows * kMaxHeadDim];
  float inverse[kTileRows];  // 1 / sum of the row's weights
  int32_t kv_len[kTileRows];
  const int32_t* pages;
  int rows, kv_head, longest, shortest;
  int64_t stride;  // from one row of scores to the next
  std::vector<float> scores;
  std::vector<BFloat16> weights;

  int last_page() const { return (longest - 1) / kPage; }
};

inline TileState& tile_state() {
  static thread_local TileState* state = new TileState();
  return *state;
}

// Scores of one row to softmax weights, left unnormalised; returns 1 / their sum. Keys at or beyond kv_len get no
// weight, whatever their score. The weights summed are the weights used: rounded as W.
template <class W>
inline float weigh_row(const float* scores, W* weights, int kv_len, float scale) {
  const int whole = kv_len / kLanes * kLanes;
  const IntVec is_known = first_lanes(kv_len - whole);
  FloatVec peaks = splat(-INFINITY);
  for (int j = 0; j < whole; j += kLanes) peaks = larger(load(scores + j) * scale, peaks);
  if (whole < kv_len) {
    const FloatVec known = select(is_known, load(scores + whole), splat(scale > 0 ? -INFINITY : INFINITY));
    peaks = larger(known * scale, peaks);
  }
  const float peak = max_lanes(peaks);
  FloatVec sum = {};
  for (int j = 0; j < whole; j += kLanes) {
    const FloatVec exact = exp_lanes(load(scores + j) * scale - peak);
    store(weights + j, exact);
    sum += round_as<W>(exact);
  }
  if (whole < kv_len) {
    const FloatVec exact = select(is_known, exp_lanes(load(scores + whole) * scale - peak), FloatVec{});
    store(weights + whole, exact);
    sum += round_as<W>(exact);
  }
  return kv_len > 0 ? 1.0f / sum_lanes(sum) : 0.0f;
}

template <class T>
inline void begin_tile(const AttentionArgs& a, const Tile& tile, TileState& s) {
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads;
  s.rows = tile.end - tile.begin;
  s.kv_head = tile.kv_head;
  s.longest = 0;
  s.shortest = INT_MAX;
  for (int r = 0; r < s.rows; r++) {
    const int64_t row = tile.first_row + (tile.begin + r) / group;
    const int head = tile.kv_head * group + (tile.begin + r) % group;
    const T* query = (const T*)a.query + row * a.query_stride + head * D;
    load_head<T>(a, query, (const T*)a.query_norm, row, s.query + r * kMaxHeadDim);
    s.kv_len[r] = a.kv_lens[row];
    s.longest = std::max(s.longest, s.kv_len[r]);
    s.shortest = std::min(s.shortest, s.kv_len[r]);
  }
  s.pages = a.page_table + a.row_request[tile.first_row] * a.table_width;
  s.stride = (s.longest + kPage - 1) / kPage * kPage;
  if ((int64_t)s.scores.size() < kTileRows * s.stride) s.scores.resize(kTileRows * s.stride);
}

template <class T>
inline void end_tile(const AttentionArgs& a, const Tile& tile, const TileState& s) {
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads;
  for (int r = 0; r < s.rows; r++) {
    const int64_t row = tile.first_row + (tile.begin + r) / group;
    const int head = tile.kv_head * group + (tile.begin + r) % group;
    T* out = (T*)a.out + (row * a.num_heads + head) * D;
    for (int d = 0; d < D; d += kLanes) store(out + d, load(s.out + r * kMaxHeadDim + d) * s.inverse[r]);
  }
}

// Consecutive rows of one request, cut into tiles of at most `tile_rows` query rows that share their keys.
inline std::vector<Tile> make_tiles(const AttentionArgs& a, int tile_rows) {
  std::vector<Tile> tiles;
  const int group = a.num_heads / a.num_kv_heads;
  for (int32_t first = 0, last; first < a.num_rows; first = last) {
    for (last = first + 1; last < a.num_rows && a.row_request[last] == a.row_request[first];) last++;
    const int32_t rows = (last - first) * group;
    for (int32_t begin = 0; begin < rows; begin += tile_rows)
      for (int32_t head = 0; head < a.num_kv_heads; head++)
        tiles.push_back({first, head, begin, std::min(begin + tile_rows, rows)});
  }
  // The last rows see the most keys: start with them so that no thread is left with a long one.
  std::reverse(tiles.begin(), tiles.end());
  return tiles;
}

}  // namespace dspark
