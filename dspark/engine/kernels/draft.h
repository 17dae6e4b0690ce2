// A whole draft in one call: embeddings of the blocks, all layers, the output projection and the sequential head. A
// drafter is small: between the parts the interpreter took as long as they do.
#pragma once

#include <vector>

#include "context_rows.h"
#include "decoder.h"
#include "markov.h"

namespace dspark {

struct DraftArgs {
  ContextRows rows;
  DecoderArgs decoder;     // but for what depends on the rows, and scratch
  MarkovArgs markov;       // likewise; reads the anchors, writes token ids and confidences
  const void* embeddings;  // [tokens, H]
  const void* head;        // packed [V, H]
  int64_t mask_token;
};

// Numbers between the parts of a draft.
struct DraftScratch {
  PlacedRows placed;
  std::vector<BFloat16> residual, hidden, delta, heads, attended, gated, logits, embedded, inputs, biases;
};

// The anchor's embedding in the first row of each block, the mask's in the others.
inline void embed_blocks(const DraftArgs& a, BFloat16* out) {
  const int64_t H = a.decoder.hidden_size;
  for (int64_t r = 0; r < a.rows.num_requests; r++)
    for (int64_t row = a.rows.first_rows[r]; row < a.rows.first_rows[r + 1]; row++) {
      const int64_t token = row == a.rows.first_rows[r] ? a.markov.anchors[r] : a.mask_token;
      std::memcpy(out + row * H, (const BFloat16*)a.embeddings + token * H, H * sizeof(BFloat16));
    }
}

// Hidden states of the blocks, in the scratch.
inline void decode_blocks(const DraftArgs& a, DraftScratch& s) {
  DecoderArgs d = a.decoder;
  const int64_t T = a.rows.num_rows(), Q = d.num_heads * d.head_dim;
  place_rows(a.rows, s.placed);
  s.residual.resize(T * d.hidden_size), s.hidden.resize(T * d.hidden_size), s.delta.resize(T * d.hidden_size);
  s.heads.resize(T * (Q + 2 * d.num_kv_heads * d.head_dim)), s.attended.resize(T * Q);
  s.gated.resize(T * d.intermediate_size);
  embed_blocks(a, s.residual.data());
  d.residual = s.residual.data(), d.hidden = s.hidden.data(), d.delta = s.delta.data();
  d.heads = s.heads.data(), d.attended = s.attended.data(), d.gated = s.gated.data();
  d.slots = s.placed.slots.data(), d.row_request = s.placed.row_request.data();
  d.kv_lens = s.placed.kv_lens.data(), d.cos = s.placed.cos.data(), d.sin = s.placed.sin.data();
  d.page_table = a.rows.page_table, d.table_width = a.rows.table_width, d.num_rows = T;
  decode(d);
}

inline void draft_blocks(const DraftArgs& a) {
  static thread_local DraftScratch* kept = new DraftScratch();
  DraftScratch& s = *kept;
  MarkovArgs m = a.markov;
  const int64_t T = a.rows.num_rows(), R = a.rows.num_requests, V = m.num_draft_tokens, H = a.decoder.hidden_size;
  decode_blocks(a, s);
  s.logits.resize(T * V), s.embedded.resize(T * m.rank), s.inputs.resize(R * m.rank), s.biases.resize(R * V);
  matmul({s.hidden.data(), a.head, nullptr, s.logits.data(), H, T, (int32_t)H, (int32_t)V, m.num_threads, 0, m.is_int8});
  m.base_logits = s.logits.data(), m.hidden = s.hidden.data();
  m.embedded = s.embedded.data(), m.inputs = s.inputs.data(), m.biases = s.biases.data();
  m.first_slots = a.rows.first_rows, m.num_requests = R;
  draft_greedily(m);
}

}  // namespace dspark
