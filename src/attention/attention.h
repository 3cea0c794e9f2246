// SPDX-License-Identifier: Apache-2.0
// Softmax attention over caches of keys and values, by the kernels of this CPU. The bits of a row's
// result do not depend on the other rows, on how tokens are cut into tiles, or on the team.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "attention/attention_kernels.h"
#include "base/carver.h"
#include "trimtab/team.h"

namespace trimtab {

// The kernels for an instruction set of experts/isa.h; several of those may share one.
const AttentionKernels& attention_kernels(std::string_view isa);

class Attention {
 public:
  // threads: the size of the team of all calls.
  Attention(const AttentionKernels& kernels, int64_t head_dim, int threads);

  // The memory of one call.
  size_t workspace_bytes() const;
  // Computes all tiles; their outputs are apart. memory: workspace_bytes(), 64-byte aligned.
  void run(std::span<const QueryTile> tiles, std::span<std::byte> memory, Team& team) const;

 private:
  // A block of a tile.
  struct Piece {
    int tile;
    int64_t begin;
  };
  struct Memory {
    std::span<AttentionScratch> scratch;  // [threads]
    std::span<Attended> all, next;        // [threads] of the tile that a member works on
    std::span<Attended> few;              // [few_tiles()]
    std::span<Attended> blocks;           // [blocks_at_once()]
    std::span<Piece> pieces;              // [blocks_at_once()]
  };
  Memory plan(Carver& carver) const;
  std::span<Attended> take_attended(Carver& carver, int count) const;

  // Fewer tiles than these are cut into blocks, so that all members have work.
  int few_tiles() const { return 2 * threads_; }
  int blocks_at_once() const { return 8 * threads_; }
  void run_whole(const QueryTile& tile, int member, const Memory& memory) const;
  static Piece after(std::span<const QueryTile> tiles, Piece piece);
  void run_in_blocks(std::span<const QueryTile> tiles, const Memory& memory, Team& team) const;

  const AttentionKernels& kernels_;
  int64_t head_dim_;
  int threads_;
};

}  // namespace trimtab
