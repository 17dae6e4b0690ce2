// x @ weight.T for rows in bfloat16 with float sums, for weights packed once. Bound by reading the weights: what matters is
// one sequential stream over huge pages, which AMX tiles, AVX512-BF16 or, for a few rows, AVX-512 or AVX2 then consume
// as fast as it comes.
//
// Exactness: an output element is summed over k in one order, whatever the number of rows or threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "amx.h"
#include "simd.h"
#include "workers.h"

#if !DSPARK_AMX && defined(__AVX512BF16__)
#define DSPARK_DOT 1
#elif !DSPARK_AMX && defined(__AVX2__) && defined(__FMA__)
#define DSPARK_FMA 1
#endif

namespace dspark {

constexpr int kBlockN = 32;             // outputs of one block: two tiles of 16
constexpr int kStripe = 2 * kRegisterLanes;  // outputs whose sums of one row are two registers: a block, or half of it
constexpr int kPiecesPerThread = 8;     // so that no thread waits long for the last one
constexpr int kTileSize = 16 * kTileK;  // numbers of one tile

struct MatmulArgs {
  const void* x;       // [T, K], row t at x + t * x_stride
  const void* packed;  // [N / 32, words of a block], N padded with zeros; see word_of
  const void* bias;    // [N] or null
  void* out;           // [T, N]; with is_gated [T, N / 2]
  int64_t x_stride, num_rows;
  int32_t in_features, out_features, num_threads;
  int32_t is_gated;  // each block holds 16 gates, then their 16 ups: out = silu(gate) * up
  int32_t is_int8;   // packed by pack_int8
};

struct PackArgs {
  const void* weight;  // [N, K]
  void* packed;
  int32_t in_features, out_features, is_gated, num_threads, is_int8;
};

// Place in its block of the word with inputs 2 * pair and 2 * pair + 1 of output n: stripe after stripe where they are
// multiplied one after the other (one unbroken stream), or the tiles of a block by turns, [K / 32][2][16 (pair)][16 (n)].
inline int64_t word_of(int64_t pair, int64_t n, [[maybe_unused]] int64_t K) {
#if DSPARK_FMA
  return (n / kStripe * (K / 2) + pair) * kStripe + n % kStripe;
#else
  return (pair / 16 * 2 + n / 16) * kTileSize / 2 + pair % 16 * 16 + n % 16;
#endif
}

// Row of the weight that becomes output n of the packed blocks; -1: padding.
inline int64_t source_row(const PackArgs& a, int64_t n) {
  if (a.is_gated) {
    const int64_t within = n % kBlockN, unit = n / kBlockN * 16 + within % 16, half = a.out_features / 2;
    return unit < half ? unit + (within >= 16 ? half : 0) : -1;
  }
  return n < a.out_features ? n : -1;
}

inline void pack_bfloat16(const PackArgs& a) {
  const int64_t K = a.in_features, blocks = (a.out_features + kBlockN - 1) / kBlockN;
  const BFloat16* weight = (const BFloat16*)a.weight;
  Workers::shared().run(blocks, a.num_threads, [&](int64_t block) {
    // Pairs of neighbouring inputs are moved as one word.
    uint32_t* out = (uint32_t*)((BFloat16*)a.packed + block * kBlockN * K);
    for (int64_t n = 0; n < kBlockN; n++) {
      const int64_t row = source_row(a, block * kBlockN + n);
      for (int64_t pair = 0; pair < K / 2; pair++) {
        uint32_t word = 0;
        if (row >= 0) std::memcpy(&word, weight + row * K + pair * 2, sizeof word);
        out[word_of(pair, n, K)] = word;
      }
    }
  });
}

// Bytes of a block of pack_int8: [stripes][K / 4][kStripe] words of four weights, then the 32 factors of the sums.
inline int64_t int8_block_bytes(int64_t K) { return kBlockN * (K + (int64_t)sizeof(float)); }

// Four weights in units of the scale as one word, the first in its lowest byte. A byte is read with all that lies below
// it, as a fraction: so the fraction is taken off before rounding.
inline uint32_t four_weights(const float* units) {
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) {
    const float fraction = std::ldexp((float)word, -8 * i);
    const float whole = std::nearbyint(units[i] - fraction);
    word |= (uint32_t)(uint8_t)(int8_t)std::min(127.0f, std::max(-128.0f, whole)) << 8 * i;
  }
  return word;
}

// Weights of 8 bits with a scale for each output, its greatest weight being 127 units.
inline void pack_int8(const PackArgs& a) {
  const int64_t K = a.in_features, blocks = (a.out_features + kBlockN - 1) / kBlockN;
  Workers::shared().run(blocks, a.num_threads, [&](int64_t block) {
    char* packed = (char*)a.packed + block * int8_block_bytes(K);
    float* factors = (float*)(packed + kBlockN * K);
    std::vector<float> units(K);
    for (int64_t n = 0; n < kBlockN; n++) {
      const int64_t row = source_row(a, block * kBlockN + n);
      float most = 0.0f;
      for (int64_t k = 0; k < K; k++) {
        units[k] = row < 0 ? 0.0f : load_one((const BFloat16*)a.weight + row * K + k);
        most = std::max(most, std::fabs(units[k]));
      }
      const float per_weight = most > 0.0f ? 127.0f / most : 0.0f;
      for (float& unit : units) unit *= per_weight;
      uint32_t* out = (uint32_t*)(packed + n / kStripe * kStripe * K) + n % kStripe;
      for (int64_t k = 0; k < K; k += 4) out[k / 4 * kStripe] = four_weights(&units[k]);
      factors[n] = std::ldexp(most / 127.0f, -24);
    }
  });
}

inline void pack_weight(const PackArgs& a) { a.is_int8 ? pack_int8(a) : pack_bfloat16(a); }

// Sums of `rows` rows (at most 16 per tile) and one block, [row][32], to the output.
inline void finish_block(const MatmulArgs& a, const float* sums, int64_t first_row, int rows, int64_t block) {
  for (int r = 0; r < rows; r++) {
    FloatVec low = load(sums + r * kBlockN), high = load(sums + r * kBlockN + 16);
    if (a.is_gated) {
      const FloatVec gate = round_as<BFloat16>(low), up = round_as<BFloat16>(high);
      BFloat16* out = (BFloat16*)a.out + (first_row + r) * (a.out_features / 2) + block * 16;
      store(out, round_as<BFloat16>(gate / (1.0f + exp_lanes(-gate))) * up);
      continue;
    }
    const int64_t n = block * kBlockN;
    BFloat16* out = (BFloat16*)a.out + (first_row + r) * a.out_features + n;
    const BFloat16* bias = a.bias ? (const BFloat16*)a.bias + n : nullptr;
    if (n + kBlockN <= a.out_features) {
      store(out, bias ? low + load(bias) : low);
      store(out + 16, bias ? high + load(bias + 16) : high);
      continue;
    }
    BFloat16 rounded[kBlockN], one_bias[kBlockN] = {};
    const int left = a.out_features - n;
    if (bias) std::memcpy(one_bias, bias, left * sizeof(BFloat16));
    store(rounded, bias ? low + load(one_bias) : low);
    store(rounded + 16, bias ? high + load(one_bias + 16) : high);
    std::memcpy(out, rounded, left * sizeof(BFloat16));
  }
}

#if DSPARK_AMX

constexpr int kStep = 32;  // rows of x a block is multiplied with at once: two tiles

inline bool can_matmul() { return has_tiles(); }

inline void prefetch_tiles(const BFloat16* packed) {
  for (int line = 0; line < 32; line++) __builtin_prefetch((const char*)packed + line * 64, 0, 3);
}

// [32][32] sums of two row tiles, or [16][32] of one; x rows are `stride` elements apart.
template <int Tiles>
inline void multiply_block(const BFloat16* x, int64_t stride, const BFloat16* packed, int64_t K, float* sums) {
  constexpr int kAheadTiles = 4;
  _tile_zero(0);
  _tile_zero(1);
  if (Tiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < K; k += kTileK) {
    prefetch_tiles(packed + kAheadTiles * kTileSize);
    _tile_loadd(4, x + k, stride * 2);
    _tile_loadd(6, packed, 64);
    _tile_loadd(7, packed + kTileSize, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (Tiles == 2) {
      _tile_loadd(5, x + kTileRows * stride + k, stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    packed += 2 * kTileSize;
  }
  _tile_stored(0, sums, kBlockN * 4);
  _tile_stored(1, sums + 16, kBlockN * 4);
  if (Tiles == 2) {
    _tile_stored(2, sums + kTileRows * kBlockN, kBlockN * 4);
    _tile_stored(3, sums + kTileRows * kBlockN + 16, kBlockN * 4);
  }
}

inline void multiply(const MatmulArgs& a, const BFloat16* x, int64_t stride, int64_t block) {
  const int64_t K = a.in_features;
  const BFloat16* packed = (const BFloat16*)a.packed + block * kBlockN * K;
  alignas(64) float sums[kStep * kBlockN];
  for (int64_t row = 0; row < a.num_rows; row += kStep) {
    const int rows = a.num_rows - row < kStep ? a.num_rows - row : kStep;
    if (rows > kTileRows)
      multiply_block<2>(x + row * stride, stride, packed, K, sums);
    else
      multiply_block<1>(x + row * stride, stride, packed, K, sums);
    finish_block(a, sums, row, rows, block);
  }
}

// Tiles read whole: the rows are padded with zeros, which nothing is summed with.
inline const BFloat16* take_rows(const MatmulArgs& a, int64_t* stride) {
  static thread_local std::vector<BFloat16> padded;
  const int64_t K = a.in_features, whole = a.num_rows / kTileRows * kTileRows;
  const BFloat16* x = (const BFloat16*)a.x;
  *stride = a.x_stride;
  if (whole == a.num_rows) return x;
  padded.resize((whole + kTileRows) * K);
  for (int64_t row = 0; row < whole + kTileRows; row++) {
    if (row < a.num_rows)
      std::memcpy(&padded[row * K], x + row * a.x_stride, K * sizeof(BFloat16));
    else
      std::memset(&padded[row * K], 0, K * sizeof(BFloat16));
  }
  *stride = K;
  return padded.data();
}

#elif DSPARK_DOT

constexpr int kStep = 8;

inline bool can_matmul() { return true; }

template <int R>
inline void multiply_block(const BFloat16* x, int64_t stride, const BFloat16* packed, int64_t K, float* sums) {
  __m512 low[R], high[R];
  for (int r = 0; r < R; r++) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t k = 0; k < K; k += kTileK, packed += 2 * kTileSize)
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh w0 = (__m512bh)_mm512_loadu_si512(packed + pair * 32);
      const __m512bh w1 = (__m512bh)_mm512_loadu_si512(packed + kTileSize + pair * 32);
      __builtin_prefetch((const char*)packed + 8192 + pair * 64);
      __builtin_prefetch((const char*)packed + 9216 + pair * 64);
      for (int r = 0; r < R; r++) {
        int32_t both;
        std::memcpy(&both, x + r * stride + k + pair * 2, 4);
        const __m512bh inputs = (__m512bh)_mm512_set1_epi32(both);
        low[r] = _mm512_dpbf16_ps(low[r], inputs, w0);
        high[r] = _mm512_dpbf16_ps(high[r], inputs, w1);
      }
    }
  for (int r = 0; r < R; r++) {
    _mm512_storeu_ps(sums + r * kBlockN, low[r]);
    _mm512_storeu_ps(sums + r * kBlockN + 16, high[r]);
  }
}

inline void multiply(const MatmulArgs& a, const BFloat16* x, int64_t stride, int64_t block) {
  const int64_t K = a.in_features;
  const BFloat16* packed = (const BFloat16*)a.packed + block * kBlockN * K;
  alignas(64) float sums[kStep * kBlockN];
  for (int64_t row = 0; row < a.num_rows; row += kStep) {
    const int rows = a.num_rows - row < kStep ? a.num_rows - row : kStep;
    with_rows(rows, [&](auto n) { multiply_block<n>(x + row * stride, stride, packed, K, sums); });
    finish_block(a, sums, row, rows, block);
  }
}

#elif DSPARK_FMA

constexpr int64_t kCacheLine = 64;
constexpr int64_t kStepBytes = 4 * kStripe;  // a word of each output of a stripe
constexpr int64_t kAheadBytes = 2048;
// How much further the cache of the second level is asked to fetch. With AVX-512 products are so fast that the first level
// alone does not have enough lines on their way; with AVX2 nothing is fetched twice.
constexpr int64_t kFurtherBytes = kRegisterLanes == 16 ? 4096 : 0;
constexpr int kSums = 2;  // registers of sums of one row
// Of 16 registers, 12 sums, 2 weights and an input leave none. Of 32, more would fit, but the pointers to more rows do not.
constexpr int kMostRows = kRegisterLanes == 16 ? 8 : 6;
constexpr int kMostGroups = 4;  // groups of rows that take turns with each stripe

inline bool can_matmul() { return true; }
inline bool can_matmul_int8() { return true; }

// Adds input k per row times a stripe of weights, two registers.
template <int R>
inline __attribute__((always_inline)) void add_products(const float* x, int64_t stride, int k, RegisterVec low,
                                                        RegisterVec high, RegisterVec (&sums)[R][kSums]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const float one = x[r * stride + k];
    sums[r][0] += one * low;
    sums[r][1] += one * high;
  }
}

// What to ask memory for while one stripe is multiplied: `step` bytes further with every cache line of weights.
struct Prefetch {
  const char* start;
  int64_t step;
};

// What the words of a stripe hold. A bfloat16 is the upper half of a float.
//
// Weights that are read once leave no trace in the shared cache (locality 0) where its vectors are short: a step of the
// target does not throw out the drafter and the interpreter, which are about to run. The CPUs with AVX-512 that come here
// read weights much slower around their shared cache than through it, even where they are many times as large.
template <bool IsReadOnce>
struct BFloat16Words {
  static constexpr int kInputs = 2;  // neighbouring inputs whose weights are in one word
  static constexpr int kLocality = IsReadOnce && kRegisterLanes == 8 ? 0 : 3;
  static RegisterVec weights(RegisterWords words, int input) {
    return (RegisterVec)(input ? words & 0xffff0000u : words << 16);
  }
};

// Of pack_int8: the weight of an input times 2^24 over its output's scale. What lies below it in the word was taken into
// account when it was rounded, and need not be cleared. They are kept in the shared cache where they find room: they are
// few enough to be there still when they are next read.
struct Int8Words {
  static constexpr int kInputs = 4;
  static constexpr int kLocality = 3;
  static RegisterVec weights(RegisterWords words, int input) {
    return __builtin_convertvector((RegisterInts)(words << (24 - 8 * input)), RegisterVec);
  }
};

template <class Words>
inline __attribute__((always_inline)) void fetch(Prefetch& prefetch) {
#pragma GCC unroll 2
  for (int64_t line = 0; line < kStepBytes; line += kCacheLine, prefetch.start += prefetch.step) {
    __builtin_prefetch(prefetch.start, 0, Words::kLocality);
    if (kFurtherBytes) __builtin_prefetch(prefetch.start + kFurtherBytes, 0, 2);
  }
}

// [R][kStripe] sums of a stripe.
//
// Not inlined: among other code GCC spills the sums, and the loop takes four times as long.
template <int R, class Words>
__attribute__((noinline)) void multiply_stripe(const float* x, int64_t stride, const void* packed, int64_t K,
                                               Prefetch prefetch, float* out) {
  RegisterVec sums[R][kSums] = {};
  const char* step = (const char*)packed;
  for (int64_t k = 0; k < K; k += Words::kInputs, step += kStepBytes) {
    RegisterWords low, high;
    std::memcpy(&low, step, sizeof low);
    std::memcpy(&high, step + sizeof low, sizeof high);
    fetch<Words>(prefetch);
#pragma GCC unroll 4
    for (int input = 0; input < Words::kInputs; input++)
      add_products<R>(x + k, stride, input, Words::weights(low, input), Words::weights(high, input), sums);
  }
  for (int r = 0; r < R; r++)
    for (int part = 0; part < kSums; part++)
      std::memcpy(out + r * kBlockN + part * kRegisterLanes, &sums[r][part], sizeof sums[r][part]);
}

typedef void (*MultiplyStripe)(const float*, int64_t, const void*, int64_t, Prefetch, float*);

template <class Words, int... Before>
inline MultiplyStripe rows_of(int rows, std::integer_sequence<int, Before...>) {
  static constexpr MultiplyStripe kByRows[] = {multiply_stripe<Before + 1, Words>...};
  return kByRows[rows - 1];
}

template <class Words>
inline MultiplyStripe rows_of(int rows) {
  return rows_of<Words>(rows, std::make_integer_sequence<int, kMostRows>());
}

inline MultiplyStripe rows_of(int rows, bool is_int8, bool is_read_once) {
  if (is_int8) return rows_of<Int8Words>(rows);
  return is_read_once ? rows_of<BFloat16Words<true>>(rows) : rows_of<BFloat16Words<false>>(rows);
}

// The first group of rows waits for memory and the others do not: each fetches its share of the weights that come
// next, so that memory is never idle. A lone group fetches a little ahead of itself.
inline Prefetch prefetch_of(const char* stripe, int64_t bytes, int64_t group, int64_t groups) {
  if (groups == 1) return {stripe + kAheadBytes, kCacheLine};
  return {stripe + bytes + bytes * group / groups, kCacheLine / groups};
}

inline void scale_sums(float* sums, int64_t rows, const float* scales) {
  for (int64_t row = 0; row < rows; row++)
    for (int n = 0; n < kBlockN; n += kLanes) {
      float* some = sums + row * kBlockN + n;
      store(some, load(some) * load(scales + n));
    }
}

inline void multiply(const MatmulArgs& a, const float* x, int64_t stride, int64_t block) {
  const int64_t K = a.in_features, weight_bytes = a.is_int8 ? 1 : sizeof(BFloat16);
  const int64_t stripe_bytes = kStripe * K * weight_bytes, all_bytes = kBlockN * K * weight_bytes;
  const char* packed = (const char*)a.packed + block * (a.is_int8 ? int8_block_bytes(K) : all_bytes);
  alignas(64) float sums[kMostGroups * kMostRows * kBlockN];
  for (int64_t first = 0; first < a.num_rows; first += kMostGroups * kMostRows) {
    const int64_t rows = std::min<int64_t>(a.num_rows - first, kMostGroups * kMostRows);
    const int64_t groups = (rows + kMostRows - 1) / kMostRows;
    for (int stripe = 0; stripe < kBlockN / kStripe; stripe++)
      for (int64_t group = 0; group < groups; group++) {
        // Groups of nearly one size: a group of one row costs as much as one of three.
        const int64_t begin = rows * group / groups, end = rows * (group + 1) / groups;
        const char* weights = packed + stripe * stripe_bytes;
        const Prefetch prefetch = prefetch_of(weights, stripe_bytes, group, groups);
        float* out = sums + begin * kBlockN + stripe * kStripe;
        const MultiplyStripe multiply_rows = rows_of(end - begin, a.is_int8, groups == 1);
        multiply_rows(x + (first + begin) * stride, stride, weights, K, prefetch, out);
      }
    if (a.is_int8) scale_sums(sums, rows, (const float*)(packed + all_bytes));
    finish_block(a, sums, first, rows, block);
  }
}

// The rows as floats: every block reads them again.
inline const float* take_rows(const MatmulArgs& a, int64_t* stride) {
  static thread_local std::vector<float> rows;
  const int64_t K = a.in_features;
  rows.resize(a.num_rows * K);
  float* out = rows.data();
  run_ranges(a.num_rows, 16384 / K + 1, a.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      for (int64_t k = 0; k < K; k += kLanes)
        store(out + row * K + k, load((const BFloat16*)a.x + row * a.x_stride + k));
  });
  *stride = K;
  return out;
}

#else

inline bool can_matmul() { return false; }
inline void multiply(const MatmulArgs&, const BFloat16*, int64_t, int64_t) {}

#endif

#if !DSPARK_FMA
// No faster than bfloat16 where that is multiplied by instructions of its own.
inline bool can_matmul_int8() { return false; }
#endif

#if !DSPARK_AMX && !DSPARK_FMA
inline const BFloat16* take_rows(const MatmulArgs& a, int64_t* stride) {
  *stride = a.x_stride;
  return (const BFloat16*)a.x;
}
#endif

inline void matmul(const MatmulArgs& a) {
  const int64_t blocks = (a.out_features + kBlockN - 1) / kBlockN;
  int64_t stride;
  const auto* x = take_rows(a, &stride);
  const int64_t piece = std::max<int64_t>(1, blocks / (a.num_threads * kPiecesPerThread));
  run_ranges(blocks, piece, a.num_threads, [&](int64_t begin, int64_t end) {
    TileScope scope(false);
    for (int64_t block = begin; block < end; block++) multiply(a, x, stride, block);
  });
}

}  // namespace dspark
