// The sequential head of a drafter, greedily: each slot's logits are biased by the token drafted before it, and the
// greatest of them is drafted, with the confidence in it. One call for all slots and requests: a slot is too little work
// for calls of its own.
#pragma once

#include <vector>

#include "argmax.h"
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
  const void* hidden;            // [T, H]
  const float* confidence_row;   // [H + K] weights of the confidence head
  float* confidences;            // [T] its logits
  int64_t num_requests;
  int32_t rank, num_draft_tokens, hidden_size, num_threads, is_int8;
  float confidence_bias;
};

inline FloatVec dot_lanes(const BFloat16* x, const float* weights, int64_t size) {
  FloatVec sum = {};
  for (int64_t i = 0; i < size; i += kLanes) sum += load(x + i) * load(weights + i);
  return sum;
}

// w [h; W1[x]] + b of a slot.
inline float confidence_logit(const MarkovArgs& a, int64_t slot) {
  const FloatVec own = dot_lanes((const BFloat16*)a.hidden + slot * a.hidden_size, a.confidence_row, a.hidden_size);
  const float* row = a.confidence_row + a.hidden_size;
  return sum_lanes(own + dot_lanes((const BFloat16*)a.embedded + slot * a.rank, row, a.rank)) + a.confidence_bias;
}

// The sums of logits and biases in [begin, end), rounded as the model rounds them.
inline BestTwo best_two_sums(const BFloat16* logits, const BFloat16* biases, int64_t begin, int64_t end) {
  return best_two_of(
      begin, end, [&](int64_t i) { return round_as<BFloat16>(load(logits + i) + load(biases + i)); },
      [&](int64_t i) { return round_as<BFloat16>(splat(load_one(logits + i) + load_one(biases + i)))[0]; });
}

// Drafts the slot of each request that is `step` slots behind its first one; false: no request has so many.
inline bool draft_slots(const MarkovArgs& a, int64_t step) {
  constexpr int64_t kPiece = 4096;
  const int64_t V = a.num_draft_tokens, K = a.rank, pieces = (V + kPiece - 1) / kPiece;
  const BFloat16* biases = (const BFloat16*)a.biases;
  static thread_local std::vector<int64_t> slots;
  static thread_local std::vector<BestTwo> found;
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
  matmul({a.inputs, a.packed, nullptr, a.biases, K, R, a.rank, a.num_draft_tokens, a.num_threads, 0, a.is_int8});
  found.resize(R * pieces);
  const int64_t* slot_of = slots.data();
  BestTwo* best = found.data();
  Workers::shared().run(R * pieces, a.num_threads, [&](int64_t i) {
    const int64_t r = i / pieces, begin = i % pieces * kPiece;
    const BFloat16* logits = (const BFloat16*)a.base_logits + slot_of[r] * V;
    best[i] = best_two_sums(logits, biases + r * V, begin, std::min(begin + kPiece, V));
  });
  for (int64_t r = 0; r < R; r++) {
    const int64_t place = merged(best + r * pieces, pieces).place;
    a.token_ids[slot_of[r]] = a.token_map ? a.token_map[place] : place;
  }
  return true;
}

inline void draft_greedily(const MarkovArgs& a) {
  for (int64_t step = 0; draft_slots(a, step);) step++;
  for (int64_t slot = 0; slot < a.first_slots[a.num_requests]; slot++) a.confidences[slot] = confidence_logit(a, slot);
}

}  // namespace dspark
