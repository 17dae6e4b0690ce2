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

// Of [begin, end): vector_at(i) are the numbers of sixteen places from i on, number_at(i) is one. A maximum that is no
// greater than one to its left does not take its place.
template <class VectorAt, class NumberAt>
inline BestTwo best_two_of(int64_t begin, int64_t end, const VectorAt& vector_at, const NumberAt& number_at) {
  const IntVec lane = lane_numbers();
  FloatVec best = splat(-INFINITY), second = best;
  IntVec places = lane + (int32_t)begin;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const FloatVec x = vector_at(i);
    const IntVec mask = x > best;
    second = larger(second, select(mask, best, x));
    best = select(mask, x, best);
    places = select(mask, lane + (int32_t)i, places);
  }
  BestTwo found;
  found.place = begin;
  for (int k = 0; k < kLanes; k++) {
    // Lanes are not in the order of places: among equals the lowest place wins.
    if (best[k] == found.best && places[k] < found.place) found.place = places[k];
    found.merge(best[k], second[k], places[k]);
  }
  for (; i < end; i++) found.merge(number_at(i), -INFINITY, i);
  return found;
}

// A row's, from those of its pieces in order.
inline BestTwo merged(const BestTwo* parts, int64_t count) {
  BestTwo whole = parts[0];
  for (int64_t i = 1; i < count; i++) whole.merge(parts[i].best, parts[i].second, parts[i].place);
  return whole;
}

template <class T>
inline void best_two(const BestTwoArgs& a) {
  constexpr int64_t kPiece = 16384;
  const int64_t pieces = (a.width + kPiece - 1) / kPiece;
  std::vector<BestTwo> found(a.num_rows * pieces);
  Workers::shared().run(a.num_rows * pieces, a.num_threads, [&](int64_t i) {
    const int64_t begin = i % pieces * kPiece;
    const T* row = (const T*)a.rows + i / pieces * a.width;
    found[i] = best_two_of(
        begin, std::min(begin + kPiece, a.width), [&](int64_t at) { return load(row + at); },
        [&](int64_t at) { return load_one(row + at); });
  });
  for (int64_t row = 0; row < a.num_rows; row++) {
    const BestTwo whole = merged(&found[row * pieces], pieces);
    a.places[row] = whole.place, a.best[row] = whole.best, a.second[row] = whole.second;
  }
}

}  // namespace dspark
