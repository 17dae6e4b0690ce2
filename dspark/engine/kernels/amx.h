// Tile registers: their shapes, and the permission to use them.
#pragma once

#include <cstdint>

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define DSPARK_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dspark {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;  // bfloat16 numbers in a row of a tile: 16 pairs

#if DSPARK_AMX

// Tiles 0-3 hold sums, 4 rows of 32 numbers of the left side, 5-7 of the right side; `narrow`: 16 numbers.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

  explicit TileConfig(bool narrow) {
    if (!narrow) return;
    column_bytes[4] = 32;
    rows[5] = rows[6] = rows[7] = 8;
  }
};

// A thread's tile registers for the duration of a scope.
class TileScope {
 public:
  explicit TileScope(bool narrow) {
    const TileConfig config(narrow);
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
};

// Linux hands the tile registers to a process that asks.
inline bool has_tiles() {
  static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return granted;
}

#else

class TileScope {
 public:
  explicit TileScope(bool) {}
  ~TileScope() {}
};

inline bool has_tiles() { return false; }

#endif

}  // namespace dspark
