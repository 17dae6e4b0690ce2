// The sequential head of a drafter, greedily: each slot's logits are biased by the token drafted before it, and the
// greatest of them is drafted. One call for all slots and requests: a slot is too little work for calls of its own.
#pragma once

#include <cmath>
#include <vector>

#include "matmul.h"

namespace dspark {

struct MarkovArgs {
  const void* base_logits;       // [T, V], the slots of each request behind one another
  const void* embeddings;        // [tokens, K]: W1
  const void* packed;            // W2 [V, K]
  const int64_t* token_map;      // [V] token of each draft id, null: the id itself
  const int64_t* anchors;        // [R] the tokens before the first slots
  const int64_t* first_slots;    // [R + 1]
  void* embedded;                // [T, K] the embeddings of the tokens before each slot
  void* inputs;                  // [R, K] scratch
  void* biases;                  // [R, V] scratch
  int64_t* token_ids;            // [T]
  int64_t num_requests;
  int32_t rank, num_draft_tokens, num_threads;
};

struct Greatest {
  float value;
  int64_t place;
};

inline void keep_greater(Greatest& best, float value, int64_t place) {
  if (value > best.value) best = {value, place};
}

// The first place of the greatest sum of logit and bias in [begin, end), rounded as the model rounds it.
inline Greatest greatest_sum(const BFloat16* logits, const BFloat16* biases, int64_t begin, int64_t end) {
  const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  FloatVec values = splat(-INFINITY);
  IntVec places = lane + (int32_t)begin;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    const FloatVec sum = round_as<BFloat16>(load(logits + i) + load(biases + i));
    const IntVec mask = is_greater(sum, values);
    values = select(mask, sum, values);
    places = (mask & (lane + (int32_t)i)) | (~mask & places);
  }
  Greatest best = {-INFINITY, begin};
  for (int k = 0; k < kLanes; k++) {
    if (values[k] == best.value && places[k] < best.place) best.place = places[k];
    keep_greater(best, values[k], places[k]);
  }
  for (; i < end; i++) {
    BFloat16 pair[2 * kLanes] = {};
    pair[0] = logits[i], pair[kLanes] = biases[i];
    keep_greater(best, round_as<BFloat16>(load(pair) + load(pair + kLanes))[0], i);
  }
  return best;
}

// Drafts the slot of each request that is `step` slots behind its first one; false: no request has so many.
inline bool draft_slots(const MarkovArgs& a, int64_t step) {
  constexpr int64_t kPiece = 4096;
  const int64_t V = a.num_draft_tokens, K = a.rank, pieces = (V + kPiece - 1) / kPiece;
  const BFloat16* biases = (const BFloat16*)a.biases;
  static thread_local std::vector<int64_t> slots;
  static thread_local std::vector<Greatest> found;
  slots.clear();
  for (int64_t r = 0; r < a.num_requests; r++) {
    const int64_t slot = a.first_slots[r] + step;
    if (slot >= a.first_slots[r + 1]) continue;
    const int64_t previous = step ? a.token_ids[slot - 1] : a.anchors[r];
    const BFloat16* row = (const BFloat16*)a.embeddings + previous * K;
    std::memcpy((BFloat16*)a.embedded + slot * K, row, K * sizeof(BFloat16));
    std::memcpy((BFloat16*)a.inputs + (int64_t)slots.size() * K, row, K * sizeof(BFloat16));
    slots.push_back(slot);
  }
  const int64_t R = slots.size();
  if (R == 0) return false;
  matmul({a.inputs, a.packed, nullptr, a.biases, K, R, a.rank, a.num_draft_tokens, a.num_threads, 0});
  found.resize(R * pieces);
  const int64_t* slot_of = slots.data();
  Greatest* best = found.data();
  Workers::shared().run(R * pieces, a.num_threads, [&](int64_t i) {
    const int64_t r = i / pieces, begin = i % pieces * kPiece;
    const BFloat16* logits = (const BFloat16*)a.base_logits + slot_of[r] * V;
    best[i] = greatest_sum(logits, biases + r * V, begin, std::min(begin + kPiece, V));
  });
  for (int64_t r = 0; r < R; r++) {
    Greatest of_row = best[r * pieces];
    for (int64_t i = 1; i < pieces; i++) keep_greater(of_row, best[r * pieces + i].value, best[r * pieces + i].place);
    a.token_ids[slot_of[r]] = a.token_map ? a.token_map[of_row.place] : of_row.place;
  }
  return true;
}

inline void draft_greedily(const MarkovArgs& a) {
  for (int64_t step = 0; draft_slots(a, step);) step++;
}

}  // namespace dspark
