// Ragged paged attention: one call attends the rows of all requests.
//
// Exactness: a row's output depends on its own query and keys only. Keys are taken page by page from the start of
// the request, whatever the number of rows, tiles or threads, and every sum has one fixed order.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace dspark {

constexpr int kPage = 16;       // keys per page, one vector of scores
constexpr int kTileRows = 16;   // query rows (token x head of one KV head) that share loaded keys
constexpr int kGroup = 8;       // query rows whose sums stay in registers
constexpr int kMaxHeadDim = 256;

struct AttentionArgs {
  const void* query;   // row t at query + t * query_stride: [Hq, D]
  const void* key;     // [Hkv, D] per row
  const void* value;   // [Hkv, D] per row
  void* out;           // [T, Hq, D]
  void* key_pages;     // [num_pages, Hkv, D, kPage]
  void* value_pages;   // [num_pages, Hkv, kPage, D]
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
    FloatVec own, other, c, s;
    std::memcpy(&own, out + d, 32);
    std::memcpy((char*)&own + 32, out + half + d, 32);
    FloatVec low_sign = {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1};
    std::memcpy(&other, out + half + d, 32);
    std::memcpy((char*)&other + 32, out + d, 32);
    std::memcpy(&c, cos + d, 32);
    std::memcpy((char*)&c + 32, cos + d, 32);
    std::memcpy(&s, sin + d, 32);
    std::memcpy((char*)&s + 32, sin + d, 32);
    FloatVec turned = round_as<T>(round_as<T>(own * c) + round_as<T>(other * low_sign * s));
    std::memcpy(rotated + d, &turned, 32);
    std::memcpy(rotated + half + d, (char*)&turned + 32, 32);
  }
  std::memcpy(out, rotated, D * sizeof(float));
}

template <class T>
inline void write_row(const AttentionArgs& a, int64_t row, int kv_head) {
  const int D = a.head_dim;
  int64_t page = a.slots[row] / kPage, offset = a.slots[row] % kPage;
  int64_t base = (page * a.num_kv_heads + kv_head) * D * kPage;
  const T* key = (const T*)a.key + row * a.key_stride + kv_head * D;
  const T* value = (const T*)a.value + row * a.value_stride + kv_head * D;
  float head[kMaxHeadDim];
  T rounded[kMaxHeadDim];
  load_head<T>(a, key, (const T*)a.key_norm, row, head);
  for (int d = 0; d < D; d += kLanes) store(rounded + d, load(head + d));
  T* key_page = (T*)a.key_pages + base;
  for (int d = 0; d < D; d++) key_page[d * kPage + offset] = rounded[d];
  std::memcpy((T*)a.value_pages + base + offset * D, value, D * sizeof(T));
}

// scores[r] = query r . keys of one page; even and odd dimensions in two chains.
template <class T, int R>
inline void score_rows(const float* query, const T* keys, int D, FloatVec* scores) {
  FloatVec even[R] = {}, odd[R] = {};
  for (int d = 0; d < D; d += 2) {
    FloatVec k0 = load(keys + d * kPage), k1 = load(keys + (d + 1) * kPage);
    for (int r = 0; r < R; r++) {
      even[r] += query[r * D + d] * k0;
      odd[r] += query[r * D + d + 1] * k1;
    }
  }
  for (int r = 0; r < R; r++) scores[r] = even[r] + odd[r];
}

// out[r] = out[r] * rescale[r] + sum over the first num_keys values of weight * value.
template <class T, int R>
inline void mix_rows(const float* weights, const float* rescale, const T* values, int D, int num_keys, float* out) {
  for (int d = 0; d < D; d += kLanes) {
    FloatVec sum[R];
    for (int r = 0; r < R; r++) sum[r] = load(out + r * D + d) * rescale[r];
    for (int j = 0; j < num_keys; j++) {
      FloatVec v = load(values + j * D + d);
      for (int r = 0; r < R; r++) sum[r] += weights[r * kPage + j] * v;
    }
    for (int r = 0; r < R; r++) store(out + r * D + d, sum[r]);
  }
}

template <class T>
using ScoreFn = void (*)(const float*, const T*, int, FloatVec*);
template <class T>
using MixFn = void (*)(const float*, const float*, const T*, int, int, float*);

template <class T>
inline ScoreFn<T> score_fn(int rows) {
  static constexpr ScoreFn<T> table[kGroup] = {score_rows<T, 1>, score_rows<T, 2>, score_rows<T, 3>,
                                               score_rows<T, 4>, score_rows<T, 5>, score_rows<T, 6>,
                                               score_rows<T, 7>, score_rows<T, 8>};
  return table[rows - 1];
}

template <class T>
inline MixFn<T> mix_fn(int rows) {
  static constexpr MixFn<T> table[kGroup] = {mix_rows<T, 1>, mix_rows<T, 2>, mix_rows<T, 3>, mix_rows<T, 4>,
                                             mix_rows<T, 5>, mix_rows<T, 6>, mix_rows<T, 7>, mix_rows<T, 8>};
  return table[rows - 1];
}

// Online softmax state of the rows of one tile.
struct TileState {
  alignas(64) float query[kTileRows * kMaxHeadDim];
  alignas(64) float out[kTileRows * kMaxHeadDim];
  alignas(64) float weights[kTileRows * kPage];
  FloatVec weight_sum[kTileRows];
  FloatVec scores[kTileRows];
  float peak[kTileRows];
  float rescale[kTileRows];
  int32_t kv_len[kTileRows];
};

// Weights of one row for the keys of one page; keys at or beyond num_keys get none, whatever their score.
inline void weigh_row(TileState& s, int r, int num_keys, float scale) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  IntVec is_key = lane < num_keys;
  FloatVec scores = select(is_key, s.scores[r] * scale, splat(-INFINITY));
  float peak = std::max(s.peak[r], max_lanes(scores));
  // While no key has a finite score there is nothing to rescale (and inf - inf would be NaN).
  bool is_raised = peak > s.peak[r];
  s.rescale[r] = is_raised ? exp_lanes(splat(s.peak[r] - peak))[0] : 1.0f;
  s.peak[r] = peak;
  FloatVec weights = select(is_key, exp_lanes(scores - peak), FloatVec{});
  s.weight_sum[r] = s.weight_sum[r] * s.rescale[r] + weights;
  store(s.weights + r * kPage, weights);
}

template <class T>
inline void attend_page(TileState& s, const T* keys, const T* values, int rows, int page_start, int D, float scale) {
  for (int g = 0; g < rows; g += kGroup) {
    int n = std::min(kGroup, rows - g);
    int least = kPage, most = 0;
    for (int r = g; r < g + n; r++) {
      int seen = std::clamp(s.kv_len[r] - page_start, 0, kPage);
      least = std::min(least, seen);
      most = std::max(most, seen);
    }
    if (most == 0) continue;
    score_fn<T>(n)(s.query + g * D, keys, D, s.scores + g);
    for (int r = g; r < g + n; r++) {
      int seen = std::clamp(s.kv_len[r] - page_start, 0, kPage);
      if (seen > 0) weigh_row(s, r, seen, scale);
      // Rows that see different parts of a page are mixed one by one: a weight of 0 would not stop a NaN.
      if (least != most && seen > 0)
        mix_rows<T, 1>(s.weights + r * kPage, s.rescale + r, values, D, seen, s.out + r * D);
    }
    if (least == most)
      mix_fn<T>(n)(s.weights + g * kPage, s.rescale + g, values, D, most, s.out + g * D);
  }
}

template <class T>
inline void attend_tile(const AttentionArgs& a, const Tile& tile) {
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads, rows = tile.end - tile.begin;
  TileState s;
  int longest = 0;
  for (int r = 0; r < rows; r++) {
    int64_t row = tile.first_row + (tile.begin + r) / group;
    int head = tile.kv_head * group + (tile.begin + r) % group;
    const T* query = (const T*)a.query + row * a.query_stride + head * D;
    load_head<T>(a, query, (const T*)a.query_norm, row, s.query + r * D);
    s.peak[r] = -INFINITY;
    s.weight_sum[r] = FloatVec{};
    s.kv_len[r] = a.kv_lens[row];
    longest = std::max(longest, s.kv_len[r]);
  }
  std::memset(s.out, 0, rows * D * sizeof(float));
  const int32_t* pages = a.page_table + a.row_request[tile.first_row] * a.table_width;
  for (int start = 0; start < longest; start += kPage) {
    int64_t base = ((int64_t)pages[start / kPage] * a.num_kv_heads + tile.kv_head) * D * kPage;
    attend_page<T>(s, (const T*)a.key_pages + base, (const T*)a.value_pages + base, rows, start, D, a.scale);
  }
  for (int r = 0; r < rows; r++) {
    int64_t row = tile.first_row + (tile.begin + r) / group;
    int head = tile.kv_head * group + (tile.begin + r) % group;
    float inverse = s.kv_len[r] > 0 ? 1.0f / sum_lanes(s.weight_sum[r]) : 0.0f;
    T* out = (T*)a.out + (row * a.num_heads + head) * D;
    for (int d = 0; d < D; d += kLanes) store(out + d, load(s.out + r * D + d) * inverse);
  }
}

inline std::vector<Tile> make_tiles(const AttentionArgs& a) {
  std::vector<Tile> tiles;
  const int group = a.num_heads / a.num_kv_heads;
  for (int32_t first = 0, last; first < a.num_rows; first = last) {
    for (last = first + 1; last < a.num_rows && a.row_request[last] == a.row_request[first];) last++;
    const int32_t rows = (last - first) * group;
    for (int32_t begin = 0; begin < rows; begin += kTileRows)
      for (int32_t head = 0; head < a.num_kv_heads; head++)
        tiles.push_back({first, head, begin, std::min(begin + kTileRows, rows)});
  }
  // The last rows see the most keys: start with them so that no thread is left with a long one.
  std::reverse(tiles.begin(), tiles.end());
  return tiles;
}

template <class T>
inline void attend(const AttentionArgs& a) {
  const std::vector<Tile> tiles = make_tiles(a);
  const int64_t num_tiles = (int64_t)tiles.size();
#pragma omp parallel num_threads(a.num_threads) if (num_tiles > 1)
  {
#pragma omp for schedule(static) collapse(2)
    for (int64_t row = 0; row < a.num_rows; row++)
      for (int head = 0; head < a.num_kv_heads; head++) write_row<T>(a, row, head);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tiles; i++) attend_tile<T>(a, tiles[i]);
  }
}

}  // namespace dspark
