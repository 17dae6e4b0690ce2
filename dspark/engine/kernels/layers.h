// The row-wise parts of a decoder layer: residual add with RMSNorm, and the gated activation.
// Each row is computed alone in one fixed order, with the roundings of the model's own code.
#pragma once

#include <cmath>

#include "simd.h"
#include "workers.h"

namespace dspark {

// Numbers of one piece of work: less is not worth a second thread.
constexpr int64_t kPiece = 16384;

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
    FloatVec x = load(residual + i);
    if (a.delta) {
      x = round_as<T>(x + load(delta + i));
      store(residual + i, x);
    }
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
  run_ranges(a.num_rows, kPiece / a.hidden_size + 1, a.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) add_norm_row<T>(a, row);
  });
}

struct GateArgs {
  const void* gate_up;  // [T, 2 * I]: gate, then up
  void* out;            // [T, I]
  int64_t num_rows;
  int32_t intermediate_size, num_threads;
};

template <class T>
inline void silu_mul(const GateArgs& a) {
  const int64_t I = a.intermediate_size;
  run_ranges(a.num_rows, kPiece / I + 1, a.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
      const T *gate = (const T*)a.gate_up + row * 2 * I, *up = gate + I;
      T* out = (T*)a.out + row * I;
      for (int64_t i = 0; i < I; i += kLanes) {
        const FloatVec g = load(gate + i);
        store(out + i, round_as<T>(g / (1.0f + exp_lanes(-g))) * load(up + i));
      }
    }
  });
}

}  // namespace dspark
