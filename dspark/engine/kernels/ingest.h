// The context of a drafter from tapped features of its target: one product fuses them, one makes the keys and values of
// all draft layers, and these go to their pages. One call: a round brings too few features for calls of their own.
#pragma once

#include "attention.h"
#include "context_rows.h"
#include "layers.h"
#include "matmul.h"

namespace dspark {

struct IngestArgs {
  ContextRows rows;
  const void* features;           // [T, F]
  const void *fuse, *fused_norm;  // packed [H, F], [H]
  const void* keys_values;        // packed [L * 2 * Hkv * D, H]: keys, then values, of each layer
  const void* const* key_norms;   // [L] of [D]
  void* const* key_pages;         // [L]
  void* const* value_pages;       // [L]
  int32_t num_layers, feature_size, hidden_size, num_kv_heads, head_dim, num_threads, is_int8;
  float norm_eps;
};

// Numbers between the parts.
struct IngestScratch {
  PlacedRows placed;
  std::vector<BFloat16> fused, normed, heads;
};

inline void write_layer(const IngestArgs& a, const IngestScratch& s, int64_t layer) {
  const int64_t width = a.num_kv_heads * a.head_dim, stride = a.num_layers * 2 * width;
  AttentionArgs args = {};
  args.key = s.heads.data() + layer * 2 * width;
  args.value = (const BFloat16*)args.key + width;
  args.key_pages = a.key_pages[layer], args.value_pages = a.value_pages[layer];
  args.slots = s.placed.slots.data(), args.cos = s.placed.cos.data(), args.sin = s.placed.sin.data();
  args.key_norm = a.key_norms[layer];
  args.key_stride = args.value_stride = stride, args.num_rows = a.rows.num_rows();
  args.num_kv_heads = a.num_kv_heads, args.head_dim = a.head_dim;
  args.num_threads = a.num_threads, args.norm_eps = a.norm_eps;
  write_rows<BFloat16>(args);
}

inline void ingest(const IngestArgs& a) {
  IngestScratch s;  // not kept: a prompt may be long
  const int32_t H = a.hidden_size, F = a.feature_size, out = a.num_layers * 2 * a.num_kv_heads * a.head_dim;
  const int64_t T = a.rows.num_rows();
  place_rows(a.rows, s.placed);
  s.fused.resize(T * H), s.normed.resize(T * H), s.heads.resize(T * out);
  matmul({a.features, a.fuse, nullptr, s.fused.data(), F, T, F, H, a.num_threads, 0, a.is_int8});
  add_norm<BFloat16>({s.fused.data(), nullptr, a.fused_norm, s.normed.data(), T, H, a.num_threads, a.norm_eps});
  matmul({s.normed.data(), a.keys_values, nullptr, s.heads.data(), H, T, H, out, a.num_threads, 0, a.is_int8});
  for (int64_t layer = 0; layer < a.num_layers; layer++) write_layer(a, s, layer);
}

}  // namespace dspark
