// SPDX-License-Identifier: Apache-2.0
// One half of a gated MLP, or of many: rows of x times the panels of their weights. Work is cut
// into items that a team shares; an item waits for those before it that it needs, so that one fork
// and join serves both halves of all experts. The items of all halves are one pipeline over the
// experts: run_halves().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "experts/operand.h"
#include "trimtab/experts.h"

namespace trimtab {

// Rows [first, first + count) of one expert.
struct Part {
  int64_t first, count;
  const Mlp* mlp;
};

// Throws InvalidArgument, calling the product `what`, unless x [m, in] and out [m, out] fit the
// weights: x f32 or bf16.
void check_product(const PackedWeights& weights, const ConstRows& x, const ConstRows& out,
                   DType out_dtype, std::string_view what);

class Half {
 public:
  enum Which { kGateUp, kDown };
  // A part's rows are prepared tile by tile, then multiplied group of panels by group.
  enum Stage { kPrepare, kMultiply };

  // parts: not empty, all of one shape and format; stay the caller's. Memory for counters and
  // prepared rows comes from the carver. Before items run, every member of the team, of this size,
  // needs scratch() bytes of its own.
  Half(Which which, std::span<const Part> parts, const RowSource& x, Rows out, int team_size,
       Carver& carver);
  // The memory that Half takes for `parts` parts and `rows` rows of this type.
  static size_t bytes(const PackedWeights& weights, int64_t parts, int64_t rows, DType x);

  int64_t num_parts() const { return std::ssize(parts_); }
  // Of a stage, in all parts before this one.
  int64_t items_before(Stage stage, int64_t part) const;
  size_t scratch() const;
  // Items may run at the same time: a multiplication waits for its part's tiles, and tiles for what
  // they are made of in `before`, the half whose output is x. So all of these must have been begun.
  // scratch: the running member's.
  void run(Stage stage, int64_t part, int64_t item, const Half* before,
           std::byte* scratch) const noexcept;

 private:
  struct Progress {
    std::atomic<int32_t> tiles, groups;  // prepared, computed
    int64_t first_tile;                  // tiles of all parts before this one
  };

  const PackedWeights& weights(const Part& part) const {
    return which_ == kGateUp ? part.mlp->gate_up_packed() : part.mlp->down_packed();
  }
  void prepare(int64_t part, int64_t tile, const Half* before, std::byte* scratch) const noexcept;
  void multiply(int64_t part, int64_t group, const Half* before, std::byte* scratch) const noexcept;
  void wait_until_finished(int64_t part) const noexcept;

  Which which_;
  std::span<const Part> parts_;
  Operand operand_;
  Rows out_;
  int team_size_;
  int64_t tiles_ = 0;  // of all parts
  int64_t panels_, group_panels_,
      groups_;          // panels of a part; panels that are one item; items of a part
  Progress* progress_;  // [parts]
};

// body(i, member) for i in [0, count), over the team unless the work is so small (about 10 us) that
// waking it costs more.
template <class Body>
void share(Team& team, int64_t count, int64_t multiply_adds, const Body& body) {
  if (multiply_adds < int64_t{1} << 18) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
  } else {
    team.for_each(count, body);
  }
}

// Runs halves of the same parts, each on the output of the one before: a pipeline of their stages,
// through which the parts go in order. While one part is multiplied the rows of the next are
// fetched from where they are, and what a part gives is used while it is still in cache.
void run_halves(std::span<const Half> halves, int64_t multiply_adds, Team& team);

// The outputs of panels [first, first + count) for all rows of a task, which has x and m. scratch:
// unpack_scratch().
struct PanelRange {
  int64_t first, count;
  int64_t then;  // the panel that this thread will probably want next; num_panels() or more: none
};
void multiply_panels(const PackedWeights& weights, Product product, PanelRange panels,
                     PanelTask task, const Rows& out, Activation activation,
                     std::byte* scratch) noexcept;
size_t unpack_scratch(const PackedWeights& weights);

}  // namespace trimtab
