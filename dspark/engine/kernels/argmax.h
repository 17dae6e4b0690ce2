// The two greatest numbers of each row: greedy choices and how near the runner-up came.
#pragma once

#include <cmath>
#include <vector>

#include "simd.h"
#include "workers.h"

namespace dspark {

struct BestTwoArgs {
  const void* rows;  // [T, V]
  int64_t* places;   // [T] the lowest place of the greatest
  float* best;       // [T]
  float* second;     // [T] the greatest of the others; equal to best where it occurs twice
  int64_t num_rows, width;
  int32_t num_threads;
};

struct BestTwo {
  float best = -INFINITY, second = -INFINITY;
  int64_t place = 0;

  // Takes in what was found to the right of this.
  void merge(float value, float runner_up, int64_t at) {
    if (value > best) {
      second = std::max(best, runner_up);
      best = value, place = at;
    } else {
      second = std::max(second, value);
    }
  }
};

// Of [begin, end). A maximum that is no greater than one to its left does not take its place.
template <class T>
inline BestTwo best_two_of(const T* row, int64_t begin, int64_t end) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  FloatVec best = splat(-INFINITY), second = best;
  IntVec places = lane + (int32_t)begin;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const FloatVec x = load(row + i);
    const IntVec mask = is_greater(x, best);
    second = larger(second, select(mask, best, x));
    best = select(mask, x, best);
    places = (mask & (lane + (int32_t)i)) | (~mask & places);
  }
  BestTwo found;
  found.place = begin;
  for (int k = 0; k < kLanes; k++) {
    // Lanes are not in the order of places: among equals the lowest place wins.
    if (best[k] == found.best && places[k] < found.place) found.place = places[k];
    found.merge(best[k], second[k], places[k]);
  }
  for (; i < end; i++) {
    T padded[kLanes] = {};
    padded[0] = row[i];
    found.merge(load(padded)[0], -INFINITY, i);
  }
  return found;
}

template <class T>
inline void best_two(const BestTwoArgs& a) {
  constexpr int64_t kPiece = 16384;
  const int64_t pieces = (a.width + kPiece - 1) / kPiece;
  std::vector<BestTwo> found(a.num_rows * pieces);
  Workers::shared().run(a.num_rows * pieces, a.num_threads, [&](int64_t i) {
    const int64_t begin = i % pieces * kPiece;
    found[i] = best_two_of((const T*)a.rows + i / pieces * a.width, begin, std::min(begin + kPiece, a.width));
  });
  for (int64_t row = 0; row < a.num_rows; row++) {
    BestTwo whole = found[row * pieces];
    for (int64_t i = 1; i < pieces; i++) {
      const BestTwo& part = found[row * pieces + i];
      whole.merge(part.best, part.second, part.place);
    }
    a.places[row] = whole.place, a.best[row] = whole.best, a.second[row] = whole.second;
  }
}

}  // namespace dspark
