// Rows that follow the contexts of requests: features that a drafter takes in, and the blocks it drafts.
#pragma once

#include <cstring>
#include <vector>

#include "pages.h"

namespace dspark {

struct ContextRows {
  const int32_t* page_table;   // [R, table_width] pages of each context
  const int64_t* starts;       // [R] absolute position of its first token
  const int64_t* lengths;      // [R] tokens before its rows
  const int64_t* first_rows;   // [R + 1] where its rows begin, then T
  const float *cos, *sin;      // [positions, half] of every absolute position
  int64_t num_requests, table_width;
  int32_t half;

  int64_t num_rows() const { return first_rows[num_requests]; }
};

// The rows one by one, as the layers read them; kept, so that they are allocated once.
struct PlacedRows {
  std::vector<int64_t> slots;
  std::vector<int32_t> row_request, kv_lens;  // each row sees its whole block
  std::vector<float> cos, sin;
};

inline void place_rows(const ContextRows& a, PlacedRows& placed) {
  const int64_t T = a.num_rows(), half = a.half;
  placed.slots.resize(T), placed.row_request.resize(T), placed.kv_lens.resize(T);
  placed.cos.resize(T * half), placed.sin.resize(T * half);
  for (int64_t r = 0; r < a.num_requests; r++) {
    const int64_t begin = a.first_rows[r], end = a.first_rows[r + 1];
    for (int64_t row = begin; row < end; row++) {
      const int64_t index = a.lengths[r] + row - begin, position = a.starts[r] + index;
      placed.slots[row] = (int64_t)a.page_table[r * a.table_width + index / kPage] * kPage + index % kPage;
      placed.row_request[row] = (int32_t)r;
      placed.kv_lens[row] = (int32_t)(a.lengths[r] + end - begin);
      std::memcpy(&placed.cos[row * half], a.cos + position * half, half * sizeof(float));
      std::memcpy(&placed.sin[row * half], a.sin + position * half, half * sizeof(float));
    }
  }
}

}  // namespace dspark
