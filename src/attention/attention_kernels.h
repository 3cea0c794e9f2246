// SPDX-License-Identifier: Apache-2.0
// The table of attention kernels of one instruction set. This header and attention_kernel.h are
// compiled once for each instruction set, with its flags, under the rules that experts/gemm.h
// explains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trimtab/kv_format.h"

namespace trimtab {

// Queries that share one head of keys: the heads of its group, for tokens at consecutive positions
// of one sequence. Row r of the tile is head r % group of token r / group.
struct QueryTile {
  static constexpr int kMaxRows = 48;

  const float* q;    // head 0 of token 0: [head_dim], the heads side by side
  int64_t q_stride;  // floats from one token to the next
  float* out;        // as q
  int64_t out_stride;
  int rows, group;
  int64_t position;  // of token 0
  int64_t window;    // a query sees so many positions, its own included; 0: all before
  // One head of keys and values: KvHead::give().
  KvFormat format = KvFormat::kF32;
  const std::byte* keys = nullptr;      // KvLayout, elements of the format
  const std::byte* values = nullptr;    // KvLayout
  const float* key_scales = nullptr;    // kI8: [positions], what a code stands for
  const float* value_scales = nullptr;  // the same
  int64_t positions = 0, head_dim = 0;  // of the KvLayout

  // What a row sees: [first, last).
  int64_t last(int row) const { return position + row / group + 1; }
  int64_t first(int row) const { return window > 0 && last(row) > window ? last(row) - window : 0; }
};

// What the positions of one block, or of several in order, give a tile: for each row the largest
// score, and relative to it the sum of the exponentials and the weighted values. A row that sees
// none of them has the sum 0.
struct Attended {
  float *top, *sum;  // [QueryTile::kMaxRows]
  float* out;        // [rows, KvLayout::padded_dim()]
};

// Where a member of the team keeps what it works on.
struct AttentionScratch {
  float* queries;  // [QueryTile::kMaxRows * head_dim] those of a tile, scaled and packed
  float* scores;   // [QueryTile::kMaxRows, KvLayout::kBlock]
};

// A row's result depends on its own query and the positions it sees: blocks begin at the same
// positions for all, and every sum runs over positions or elements in order.
struct AttentionKernels {
  const char* isa;
  void (*pack)(const QueryTile& tile, float* queries) noexcept;
  // scratch: with the queries of this tile. begin: a block that some row sees.
  void (*attend)(const QueryTile& tile, int64_t begin, const AttentionScratch& scratch,
                 const Attended& result) noexcept;
  // `all` becomes what its blocks and the next one give.
  void (*merge)(const QueryTile& tile, const Attended& all, const Attended& next) noexcept;
  void (*finish)(const QueryTile& tile, const Attended& all) noexcept;
};

extern const AttentionKernels kScalarAttention;
#if defined(__x86_64__)
extern const AttentionKernels kAvx2Attention;
extern const AttentionKernels kAvx512Attention;
#elif defined(__aarch64__)
extern const AttentionKernels kNeonAttention;
#endif

}  // namespace trimtab
