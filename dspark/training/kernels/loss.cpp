// Vocabulary losses of one chunk of positions, in three passes over each row instead of a dozen tensor operations.
// The formulas are in losses.py; this computes the same numbers in float32 from logits in
// bfloat16 or float32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../engine/kernels/simd.h"

using dspark::BFloat16;
using dspark::FloatVec;
using dspark::IntVec;
using dspark::kLanes;

struct LossArgs {
  void* logits;                  // [n, vocab] in; gradient out
  const void* target_logits;     // [n, vocab]
  const float* log_norm;         // [n]
  const int64_t* labels;         // [n], -1: not in the draft vocabulary
  const float* weights;          // [n]
  float* value;                  // [n] out
  float* overlap;                // [n] out
  int64_t num_rows;
  int64_t vocab;                 // a multiple of 16
  float hard, soft, tv;
  int32_t is_float32;            // both logits; otherwise they are bfloat16
  int32_t num_threads;
};

namespace {

// One row; `draft` and `target` are scratch of `vocab` floats each.
template <class Element>
void run_row(const LossArgs& args, int64_t row, float* draft, float* target) {
  const int64_t vocab = args.vocab;
  Element* logits = static_cast<Element*>(args.logits) + row * vocab;
  const Element* target_logits = static_cast<const Element*>(args.target_logits) + row * vocab;

  FloatVec top = dspark::load(logits);
  for (int64_t i = kLanes; i < vocab; i += kLanes) {
    FloatVec x = dspark::load(logits + i);
    top = dspark::select(x > top, x, top);
  }
  const float shift = dspark::max_lanes(top);

  const FloatVec log_norm = dspark::splat(args.log_norm[row]);
  FloatVec sum{}, mass{}, cross{};
  for (int64_t i = 0; i < vocab; i += kLanes) {
    FloatVec x = dspark::load(logits + i) - shift;
    FloatVec e = dspark::exp_lanes(x);
    FloatVec t = dspark::exp_lanes(dspark::load(target_logits + i) - log_norm);
    sum += e;
    mass += t;
    cross += t * x;
    dspark::store(draft + i, e);
    dspark::store(target + i, t);
  }
  const float total = dspark::sum_lanes(sum), target_mass = dspark::sum_lanes(mass);
  const float log_total = std::log(total), inverse = 1.0f / total;

  const FloatVec half = dspark::splat(0.5f), minus_half = dspark::splat(-0.5f);
  FloatVec distance{}, signed_mass{};
  for (int64_t i = 0; i < vocab; i += kLanes) {
    FloatVec d = dspark::load(draft + i) * inverse;
    FloatVec difference = d - dspark::load(target + i);
    FloatVec sign = dspark::select(difference > FloatVec{}, half, minus_half);
    distance += sign * difference;
    signed_mass += sign * d;
  }
  const float tv = dspark::sum_lanes(distance) + 0.5f * (1.0f - target_mass);
  const float mean_sign = dspark::sum_lanes(signed_mass);
  const int64_t label = args.labels[row];
  const bool has_label = args.hard != 0.0f && label >= 0;

  float value = args.soft * (target_mass * log_total - dspark::sum_lanes(cross)) + args.tv * tv;
  if (has_label) value -= args.hard * (std::log(std::max(draft[label] * inverse, 1e-30f)));
  args.value[row] = value;
  args.overlap[row] = 1.0f - tv;

  const float weight = args.weights[row];
  const float on_draft = weight * (args.soft * target_mass + (has_label ? args.hard : 0.0f));
  const float on_target = weight * args.soft, on_tv = weight * args.tv;
  for (int64_t i = 0; i < vocab; i += kLanes) {
    FloatVec d = dspark::load(draft + i) * inverse, t = dspark::load(target + i);
    FloatVec sign = dspark::select(d > t, half, minus_half);
    dspark::store(logits + i, d * on_draft - t * on_target + d * (sign - mean_sign) * on_tv);
  }
  if (has_label) {
    const float d = draft[label] * inverse, t = target[label];
    const float sign = d > t ? 0.5f : -0.5f;
    const float gradient =
        d * on_draft - t * on_target + d * (sign - mean_sign) * on_tv - weight * args.hard;
    FloatVec lanes = dspark::splat(gradient);
    Element rounded[kLanes];
    dspark::store(rounded, lanes);
    logits[label] = rounded[0];
  }
}

}  // namespace

extern "C" void dspark_vocabulary_loss(const LossArgs* args) {
  const auto run = args->is_float32 ? run_row<float> : run_row<BFloat16>;
#pragma omp parallel num_threads(args->num_threads)
  {
    std::vector<float> scratch(2 * args->vocab);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < args->num_rows; row++)
      run(*args, row, scratch.data(), scratch.data() + args->vocab);
  }
}
