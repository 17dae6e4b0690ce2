// The C ABI of the kernels: dtype 0 is float, 1 is bfloat16. Arguments are checked by the caller.
#include "argmax.h"
#include "decoder.h"
#include "draft.h"
#include "ingest.h"

#include <sys/mman.h>

using namespace dspark;

namespace {

struct Span {
  void* start;
  size_t size;
};

// The whole huge pages inside a range.
Span huge_span(void* start, size_t size) {
  const uintptr_t huge = 2 << 20, begin = ((uintptr_t)start + huge - 1) / huge * huge;
  const uintptr_t end = ((uintptr_t)start + size) / huge * huge;
  return {(void*)begin, end > begin ? end - begin : 0};
}

}  // namespace

extern "C" {

void dspark_attend(int dtype, const AttentionArgs* args) {
  dtype ? attend<BFloat16>(*args) : attend<float>(*args);
}

void dspark_decode(const DecoderArgs* args) { decode(*args); }

void dspark_ingest(const IngestArgs* args) { ingest(*args); }

void dspark_draft_blocks(const DraftArgs* args) { draft_blocks(*args); }

void dspark_draft_greedily(const MarkovArgs* args) { draft_greedily(*args); }

// Only the keys and values; query and kv_lens are not read.
void dspark_write_pages(int dtype, const AttentionArgs* args) {
  dtype ? write_rows<BFloat16>(*args) : write_rows<float>(*args);
}

void dspark_add_norm(int dtype, const NormArgs* args) {
  dtype ? add_norm<BFloat16>(*args) : add_norm<float>(*args);
}

void dspark_silu_mul(int dtype, const GateArgs* args) {
  dtype ? silu_mul<BFloat16>(*args) : silu_mul<float>(*args);
}

void dspark_best_two(int dtype, const BestTwoArgs* args) {
  dtype ? best_two<BFloat16>(*args) : best_two<float>(*args);
}

// Whether matmul works on this machine; asks the kernel for AMX, so call it once before.
int dspark_can_matmul() { return can_matmul(); }

// Whether it works for weights of 8 bits as well.
int dspark_can_matmul_int8() { return can_matmul_int8(); }

void dspark_pack_weight(const PackArgs* args) { pack_weight(*args); }

void dspark_matmul(const MatmulArgs* args) { matmul(*args); }

// Ask for huge pages: weights are read slower over small ones.
void dspark_advise_huge(void* start, size_t size) {
  const Span span = huge_span(start, size);
#ifdef MADV_HUGEPAGE
  if (span.size) madvise(span.start, span.size, MADV_HUGEPAGE);
#endif
}

// Touch memory that was advised and gather what came as small pages, which a fault gives readily where free
// memory lies in pieces. A kernel before 6.1 cannot gather; it leaves the pages as they came.
void dspark_gather_huge(void* start, size_t size) {
  const Span span = huge_span(start, size);
  for (size_t at = 0; at < span.size; at += 4096) {
    volatile char* byte = (volatile char*)span.start + at;
    *byte = *byte;
  }
#ifdef MADV_COLLAPSE
  if (span.size) madvise(span.start, span.size, MADV_COLLAPSE);
#elif defined(__linux__)
  if (span.size) madvise(span.start, span.size, 25);
#endif
}

}  // extern "C"
