// The C ABI of the kernels: dtype 0 is float, 1 is bfloat16. Arguments are checked by the caller.
#include "attention.h"
#include "layers.h"

using namespace dspark;

extern "C" {

void dspark_attend(int dtype, const AttentionArgs* args) {
  dtype ? attend<BFloat16>(*args) : attend<float>(*args);
}

void dspark_add_norm(int dtype, const NormArgs* args) {
  dtype ? add_norm<BFloat16>(*args) : add_norm<float>(*args);
}

void dspark_silu_mul(int dtype, const GateArgs* args) {
  dtype ? silu_mul<BFloat16>(*args) : silu_mul<float>(*args);
}

}  // extern "C"
