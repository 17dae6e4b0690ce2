// The row-wise parts of a decoder layer: residual add with RMSNorm, and the gated activation.
// Each row is computed alone in one fixed order, with the roundings of the model's own code.
#pragma once

#include <cmath>

#include "simd.h"

namespace dspark {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kParallelFrom = 16384;

struct NormArgs {
  void* residual;      // [T, H]; receives residual + delta
  const void* delta;   // [T, H] or null
  const void* weight;  // [H]
  void* out;           // [T, H]
  int64_t num_rows;
  int32_t hidden_size, num_threads;
  float eps;
};

template <class T>
inline void add_norm_row(const NormArgs& a, int64_t row) {
  const int H = a.hidden_size;
  T* residual = (T*)a.residual + row * H;
  const T *delta = (const T*)a.delta + row * H, *weight = (const T*)a.weight;
  T* out = (T*)a.out + row * H;
  FloatVec even = {}, odd = {};
  for (int i = 0; i < H; i += kLanes) {
    if (a.delta) store(residual + i, load(residual + i) + load(delta + i));
    FloatVec x = load(residual + i);
    if ((i / kLanes) % 2) {
      odd += x * x;
    } else {
      even += x * x;
    }
  }
  float inverse = 1.0f / std::sqrt(sum_lanes(even + odd) / H + a.eps);
  for (int i = 0; i < H; i += kLanes)
    store(out + i, load(weight + i) * round_as<T>(load(residual + i) * inverse));
}

template <class T>
inline void add_norm(const NormArgs& a) {
#pragma omp parallel for schedule(static) num_threads(a.num_threads) if (a.num_rows * a.hidden_size >= kParallelFrom)
  for (int64_t row = 0; row < a.num_rows; row++) add_norm_row<T>(a, row);
}

struct GateArgs {
  const void* gate_up;  // [T, 2 * I]: gate, then up
  void* out;            // [T, I]
  int64_t num_rows;
  int32_t intermediate_size, num_threads;
};

template <class T>
inline void silu_mul(const GateArgs& a) {
  const int64_t I = a.intermediate_size, chunk = kLanes * 16, chunks = (I + chunk - 1) / chunk;
#pragma omp parallel for schedule(static) num_threads(a.num_threads) if (a.num_rows * I >= kParallelFrom)
  for (int64_t c = 0; c < a.num_rows * chunks; c++) {
    const int64_t row = c / chunks, begin = c % chunks * chunk, end = begin + chunk < I ? begin + chunk : I;
    const T *gate = (const T*)a.gate_up + row * 2 * I, *up = gate + I;
    T* out = (T*)a.out + row * I;
    for (int64_t i = begin; i < end; i += kLanes) {
      FloatVec g = load(gate + i);
      store(out + i, round_as<T>(g / (1.0f + exp_lanes(-g))) * load(up + i));
    }
  }
}

}  // namespace dspark
