// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "attention/kv_layout.h"

namespace trimtab {
namespace {

constexpr int64_t kBlock = KvLayout::kBlock;

// The blocks that a tile sees: the first position of the first one, and the last that any row sees,
// plus 1.
struct BlockRange {
  int64_t begin, end;
  explicit BlockRange(const QueryTile& tile)
      : begin(tile.first(0) / kBlock * kBlock), end(tile.last(tile.rows - 1)) {}
};

void clear(const Attended& attended) {
  std::fill_n(attended.sum, QueryTile::kMaxRows, 0.0F);
}

}  // namespace

const AttentionKernels& attention_kernels(std::string_view isa) {
#if defined(__x86_64__)
  if (isa.starts_with("avx512")) return kAvx512Attention;
  if (isa.starts_with("avx2")) return kAvx2Attention;
#elif defined(__aarch64__)
  if (isa.starts_with("neon")) return kNeonAttention;
#endif
  return kScalarAttention;
}

Attention::Attention(const AttentionKernels& kernels, int64_t head_dim, int threads)
    : kernels_(kernels), head_dim_(head_dim), threads_(threads) {}

std::span<Attended> Attention::take_attended(Carver& carver, int count) const {
  const int64_t rows = QueryTile::kMaxRows, dim = KvLayout::rounded(head_dim_);
  const std::span<Attended> all = carver.take<Attended>(count);
  for (int i = 0; i < count; ++i) {
    const Attended one{carver.take<float>(rows).data(), carver.take<float>(rows).data(),
                       carver.take<float>(rows * dim).data()};
    if (!carver.measuring()) all[i] = one;
  }
  return all;
}

Attention::Memory Attention::plan(Carver& carver) const {
  Memory m;
  m.scratch = carver.take<AttentionScratch>(threads_);
  for (int i = 0; i < threads_; ++i) {
    const AttentionScratch one{carver.take<float>(QueryTile::kMaxRows * head_dim_).data(),
                               carver.take<float>(QueryTile::kMaxRows * kBlock).data()};
    if (!carver.measuring()) m.scratch[i] = one;
  }
  m.all = take_attended(carver, threads_);
  m.next = take_attended(carver, threads_);
  m.few = take_attended(carver, few_tiles());
  m.blocks = take_attended(carver, blocks_at_once());
  m.pieces = carver.take<Piece>(blocks_at_once());
  return m;
}

size_t Attention::workspace_bytes() const {
  Carver carver(nullptr);
  plan(carver);
  return carver.used();
}

void Attention::run(std::span<const QueryTile> tiles, std::span<std::byte> memory,
                    Team& team) const {
  assert(team.size() == threads_ && memory.size() >= workspace_bytes());
  Carver carver(memory.data());
  const Memory m = plan(carver);
  if (threads_ > 1 && std::ssize(tiles) < few_tiles()) return run_in_blocks(tiles, m, team);
  team.for_each(std::ssize(tiles), [&](int64_t i, int member) { run_whole(tiles[i], member, m); });
}

void Attention::run_whole(const QueryTile& tile, int member, const Memory& m) const {
  const BlockRange blocks(tile);
  const Attended &all = m.all[member], &next = m.next[member];
  kernels_.pack(tile, m.scratch[member].queries);
  // The first block's result stands as it is.
  kernels_.attend(tile, blocks.begin, m.scratch[member], all);
  for (int64_t begin = blocks.begin + kBlock; begin < blocks.end; begin += kBlock) {
    kernels_.attend(tile, begin, m.scratch[member], next);
    kernels_.merge(tile, all, next);
  }
  kernels_.finish(tile, all);
}

// The blocks of all tiles one after the other, as many at once as there is memory for. Then each
// tile's are merged in their order, as run_whole() does.
void Attention::run_in_blocks(std::span<const QueryTile> tiles, const Memory& m, Team& team) const {
  const int num_tiles = static_cast<int>(tiles.size());
  for (int t = 0; t < num_tiles; ++t) clear(m.few[t]);
  Piece next = {0, num_tiles > 0 ? BlockRange(tiles[0]).begin : 0};
  while (next.tile < num_tiles) {
    const int first_tile = next.tile;
    int64_t count = 0;
    for (; count < std::ssize(m.pieces) && next.tile < num_tiles; next = after(tiles, next))
      m.pieces[count++] = next;
    const std::span<const Piece> pieces = m.pieces.first(count);

    team.for_each(count, [&](int64_t i, int member) {
      const QueryTile& tile = tiles[pieces[i].tile];
      kernels_.pack(tile, m.scratch[member].queries);
      kernels_.attend(tile, pieces[i].begin, m.scratch[member], m.blocks[i]);
    });
    team.for_each(pieces.back().tile - first_tile + 1, [&](int64_t i) {
      const int t = first_tile + static_cast<int>(i);
      for (int64_t p = 0; p < count; ++p) {
        if (pieces[p].tile == t) kernels_.merge(tiles[t], m.few[t], m.blocks[p]);
      }
      if (t < next.tile) kernels_.finish(tiles[t], m.few[t]);
    });
  }
}

// The block that follows: of the same tile, or the first one of the next.
Attention::Piece Attention::after(std::span<const QueryTile> tiles, Piece piece) {
  piece.begin += kBlock;
  if (piece.begin < BlockRange(tiles[piece.tile]).end) return piece;
  ++piece.tile;
  return {piece.tile, piece.tile < std::ssize(tiles) ? BlockRange(tiles[piece.tile]).begin : 0};
}

}  // namespace trimtab
