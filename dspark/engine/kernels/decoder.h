// All decoder layers of a Llama-like model in bfloat16, one call per step: between its parts there is nothing, not
// even an interpreter.
#pragma once

#include "attend_lanes.h"
#include "attend_tiles.h"
#include "layers.h"
#include "matmul.h"

namespace dspark {

struct LayerArgs {
  const void *input_norm, *attention_norm, *query_norm, *key_norm;  // the last two may be null
  const void *qkv, *qkv_bias, *output, *output_bias, *gated, *down, *down_bias;  // packed; biases may be null
  void *key_pages, *value_pages;
  int64_t tap;  // column of the taps that receives this layer's output; -1: none
};

struct DecoderArgs {
  const LayerArgs* layers;
  const void* final_norm;
  void* residual;  // [T, H]: embeddings, then the raw output of the last layer
  void* hidden;    // [T, H]: after the final norm
  void* taps;      // [T, tap_stride]
  void* delta;     // [T, H] scratch
  void* heads;     // [T, (Hq + 2 Hkv) D] scratch
  void* attended;  // [T, Hq D] scratch
  void* gated;     // [T, I] scratch
  const int64_t* slots;
  const int32_t* row_request;
  const int32_t* page_table;
  const int32_t* kv_lens;
  const float *cos, *sin;
  int64_t num_rows, table_width, tap_stride;
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, num_threads, is_int8;
  float scale, norm_eps;
};

template <class T>
inline void attend(const AttentionArgs& a) {
#if DSPARK_AMX
  if (std::is_same<T, BFloat16>::value && can_tile(a)) return attend_tiles(a);
#endif
  attend_lanes<T>(a);
}

inline void project(const DecoderArgs& a, const void* x, int32_t in, const void* packed, const void* bias, void* out,
                    int32_t out_features, bool is_gated = false) {
  matmul({x, packed, bias, out, in, a.num_rows, in, out_features, a.num_threads, is_gated, a.is_int8});
}

inline void normalise(const DecoderArgs& a, const void* delta, const void* weight) {
  add_norm<BFloat16>({a.residual, delta, weight, a.hidden, a.num_rows, a.hidden_size, a.num_threads, a.norm_eps});
}

inline void attend_layer(const DecoderArgs& a, const LayerArgs& layer) {
  const int32_t D = a.head_dim, width = (a.num_heads + 2 * a.num_kv_heads) * D;
  const BFloat16* query = (const BFloat16*)a.heads;
  const BFloat16* key = query + a.num_heads * D;
  AttentionArgs args = {};
  args.query = query, args.key = key, args.value = key + a.num_kv_heads * D, args.out = a.attended;
  args.key_pages = layer.key_pages, args.value_pages = layer.value_pages;
  args.slots = a.slots, args.row_request = a.row_request, args.page_table = a.page_table, args.kv_lens = a.kv_lens;
  args.cos = a.cos, args.sin = a.sin, args.query_norm = layer.query_norm, args.key_norm = layer.key_norm;
  args.query_stride = args.key_stride = args.value_stride = width;
  args.num_rows = a.num_rows, args.table_width = a.table_width;
  args.num_heads = a.num_heads, args.num_kv_heads = a.num_kv_heads, args.head_dim = D;
  args.num_threads = a.num_threads, args.scale = a.scale, args.norm_eps = a.norm_eps;
  attend<BFloat16>(args);
}

inline void tap_residual(const DecoderArgs& a, int64_t column) {
  const BFloat16* residual = (const BFloat16*)a.residual;
  for (int64_t row = 0; row < a.num_rows; row++)
    std::memcpy((BFloat16*)a.taps + row * a.tap_stride + column, residual + row * a.hidden_size,
                a.hidden_size * sizeof(BFloat16));
}

inline void decode(const DecoderArgs& a) {
  const int32_t H = a.hidden_size, I = a.intermediate_size, Q = a.num_heads * a.head_dim;
  const void* delta = nullptr;
  int64_t tap = -1;
  for (int32_t i = 0; i < a.num_layers; i++) {
    const LayerArgs& layer = a.layers[i];
    normalise(a, delta, layer.input_norm);
    if (tap >= 0) tap_residual(a, tap);
    project(a, a.hidden, H, layer.qkv, layer.qkv_bias, a.heads, Q + 2 * a.num_kv_heads * a.head_dim);
    attend_layer(a, layer);
    project(a, a.attended, Q, layer.output, layer.output_bias, a.delta, H);
    normalise(a, a.delta, layer.attention_norm);
    project(a, a.hidden, H, layer.gated, nullptr, a.gated, 2 * I, true);
    project(a, a.gated, I, layer.down, layer.down_bias, a.delta, H);
    delta = a.delta;
    tap = layer.tap;
  }
  normalise(a, delta, a.final_norm);
  if (tap >= 0) tap_residual(a, tap);
}

}  // namespace dspark
