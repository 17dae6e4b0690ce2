// Ragged paged attention: one call attends the rows of all requests.
//
// Exactness: a row's output depends on its own query and keys only. Keys are taken page by page from the start of
// the request, whatever the number of rows, tiles or threads, and every sum has one fixed order.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <vector>

#include "simd.h"

namespace dspark {

constexpr int kPage = 16;       // keys per page, one vector of scores
constexpr int kMaxHeadDim = 256;
constexpr int kAhead = 3;       // pages stand anywhere in memory, so no hardware prefetcher finds the next one

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
inline void score_rows(const float* query, const T* keys, const T* ahead, int D, FloatVec* scores) {
  FloatVec even[R] = {}, odd[R] = {};
  for (int d = 0; d < D; d += 2) {
    __builtin_prefetch(ahead + d * kPage);
    FloatVec k0 = load(keys + d * kPage), k1 = load(keys + (d + 1) * kPage);
    for (int r = 0; r < R; r++) {
      even[r] += query[r * D + d] * k0;
      odd[r] += query[r * D + d + 1] * k1;
    }
  }
  for (int r = 0; r < R; r++) scores[r] = even[r] + odd[r];
}

// out[r] += sum over the first num_keys values of weight * value; rows of weights are `stride` apart.
template <class T, int R>
inline void mix_rows(const float* weights, int64_t stride, const T* values, const T* ahead, int D, int num_keys,
                     float* out) {
  for (int d = 0; d < D; d += kLanes) {
    FloatVec sum[R];
    for (int r = 0; r < R; r++) sum[r] = load(out + r * D + d);
    for (int j = 0; j < num_keys; j++) {
      __builtin_prefetch(ahead + j * D + d);
      FloatVec v = load(values + j * D + d);
      for (int r = 0; r < R; r++) sum[r] += weights[r * stride + j] * v;
    }
    for (int r = 0; r < R; r++) store(out + r * D + d, sum[r]);
  }
}

// Scratch of one thread for the rows of one group: scores of all keys, then their weights.
struct GroupState {
  alignas(64) float query[kGroup * kMaxHeadDim];
  alignas(64) float out[kGroup * kMaxHeadDim];
  int32_t kv_len[kGroup];
  int64_t row[kGroup];
  int32_t head[kGroup];
  int rows, longest, shortest;
  int64_t stride;  // floats from one row of weights to the next
  std::vector<float> weights;
};

// Scores to softmax weights, left unnormalised; returns 1 / their sum. Keys at or beyond kv_len get none.
inline float weigh_row(float* scores, int kv_len, float scale) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  FloatVec peaks = splat(-INFINITY);
  for (int j = 0; j < kv_len; j += kLanes) {
    FloatVec scaled = select(lane < kv_len - j, load(scores + j) * scale, splat(-INFINITY));
    store(scores + j, scaled);
    peaks = larger(scaled, peaks);
  }
  const float peak = max_lanes(peaks);
  FloatVec sum = {};
  for (int j = 0; j < kv_len; j += kLanes) {
    FloatVec weights = exp_lanes(load(scores + j) - peak);
    store(scores + j, weights);
    sum += weights;
  }
  return 1.0f / sum_lanes(sum);
}

template <class T>
inline const T* page_of(const AttentionArgs& a, const void* pages, int64_t page, int kv_head) {
  return (const T*)pages + (page * a.num_kv_heads + kv_head) * a.head_dim * kPage;
}

template <class T>
inline void score_group(const AttentionArgs& a, const int32_t* pages, int kv_head, GroupState& s) {
  const int D = a.head_dim, last = (s.longest - 1) / kPage;
  for (int start = 0; start < s.longest; start += kPage) {
    const T* keys = page_of<T>(a, a.key_pages, pages[start / kPage], kv_head);
    const T* ahead = page_of<T>(a, a.key_pages, pages[std::min(start / kPage + kAhead, last)], kv_head);
    with_rows(s.rows, [&](auto rows) {
      FloatVec scores[rows];
      score_rows<T, rows>(s.query, keys, ahead, D, scores);
      for (int r = 0; r < rows; r++) store(s.weights.data() + r * s.stride + start, scores[r]);
    });
  }
}

template <class T>
inline void mix_group(const AttentionArgs& a, const int32_t* pages, int kv_head, GroupState& s) {
  const int D = a.head_dim, last = (s.longest - 1) / kPage;
  for (int start = 0; start < s.longest; start += kPage) {
    const T* values = page_of<T>(a, a.value_pages, pages[start / kPage], kv_head);
    const T* ahead = page_of<T>(a, a.value_pages, pages[std::min(start / kPage + kAhead, last)], kv_head);
    const float* weights = s.weights.data() + start;
    if (start + kPage <= s.shortest || s.longest == s.shortest) {
      const int num_keys = std::min(kPage, s.longest - start);
      with_rows(s.rows, [&](auto rows) { mix_rows<T, rows>(weights, s.stride, values, ahead, D, num_keys, s.out); });
      continue;
    }
    // Rows that see different parts of a page are mixed one by one: a weight of 0 would not stop a NaN.
    for (int r = 0; r < s.rows; r++)
      mix_rows<T, 1>(weights + r * s.stride, s.stride, values, ahead, D, std::clamp(s.kv_len[r] - start, 0, kPage),
                     s.out + r * D);
  }
}

template <class T>
inline void attend_group(const AttentionArgs& a, const Tile& tile, GroupState& s) {
  const int D = a.head_dim, group = a.num_heads / a.num_kv_heads;
  s.rows = tile.end - tile.begin;
  s.longest = 0;
  s.shortest = INT_MAX;
  for (int r = 0; r < s.rows; r++) {
    const int64_t row = s.row[r] = tile.first_row + (tile.begin + r) / group;
    s.head[r] = tile.kv_head * group + (tile.begin + r) % group;
    const T* query = (const T*)a.query + row * a.query_stride + s.head[r] * D;
    load_head<T>(a, query, (const T*)a.query_norm, row, s.query + r * D);
    s.kv_len[r] = a.kv_lens[row];
    s.longest = std::max(s.longest, s.kv_len[r]);
    s.shortest = std::min(s.shortest, s.kv_len[r]);
  }
  s.stride = (s.longest + kPage - 1) / kPage * kPage;
  if ((int64_t)s.weights.size() < s.rows * s.stride) s.weights.resize(kGroup * s.stride);
  std::memset(s.out, 0, s.rows * D * sizeof(float));
  const int32_t* pages = a.page_table + a.row_request[tile.first_row] * a.table_width;
  score_group<T>(a, pages, tile.kv_head, s);
  float inverse[kGroup];
  for (int r = 0; r < s.rows; r++)
    inverse[r] = s.kv_len[r] > 0 ? weigh_row(s.weights.data() + r * s.stride, s.kv_len[r], a.scale) : 0.0f;
  mix_group<T>(a, pages, tile.kv_head, s);
  for (int r = 0; r < s.rows; r++) {
    T* out = (T*)a.out + (s.row[r] * a.num_heads + s.head[r]) * D;
    for (int d = 0; d < D; d += kLanes) store(out + d, load(s.out + r * D + d) * inverse[r]);
  }
}

inline std::vector<Tile> make_tiles(const AttentionArgs& a) {
  std::vector<Tile> tiles;
  const int group = a.num_heads / a.num_kv_heads;
  for (int32_t first = 0, last; first < a.num_rows; first = last) {
    for (last = first + 1; last < a.num_rows && a.row_request[last] == a.row_request[first];) last++;
    const int32_t rows = (last - first) * group;
    for (int32_t begin = 0; begin < rows; begin += kGroup)
      for (int32_t head = 0; head < a.num_kv_heads; head++)
        tiles.push_back({first, head, begin, std::min(begin + kGroup, rows)});
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
    GroupState state;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tiles; i++) attend_group<T>(a, tiles[i], state);
  }
}

}  // namespace dspark
