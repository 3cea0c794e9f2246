// SPDX-License-Identifier: Apache-2.0
// The two products of a gated MLP over the rows of many experts. Work is cut into items that a team
// shares; an item waits for those before it that it needs, so that one fork and join serves both
// products of all experts. The items of all products form one pipeline over the experts:
// run_pipeline().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "experts/operand.h"
#include "trimtab/experts.h"

namespace trimtab {

// The rows [first, first + count), which belong to one expert.
struct ExpertRows {
  int64_t first, count;
  const Mlp* mlp;
};

// Throws InvalidArgument, calling the product `what`, unless x [m, in] and out [m, out] fit the
// weights: x f32 or bf16.
void check_product(const PackedWeights& weights, const ConstRows& x, const ConstRows& out,
                   DType out_dtype, std::string_view what);

// Throws InvalidArgument for scratch that is too short, badly aligned, or where the rows are.
void check_scratch(std::string_view what, size_t needed, const ConstRows& x, const ConstRows& out,
                   std::span<std::byte> scratch);

// Panels that are one item: enough to keep the team from queueing for items, and few enough to
// share a part evenly.
int64_t panels_of_item(int64_t panels, int64_t rows_of_part, int team_size);

enum class MlpHalf { kGateUp, kDown };

// Panels of one matrix, side by side.
struct PanelRange {
  int64_t first, count;
  int64_t then;  // the panel that this thread will probably want next; num_panels() or more: none
};

// Rows of x times the panels of one half of their experts' weights.
class PipelinedProduct {
 public:
  // An expert's rows are prepared tile by tile, then multiplied group of panels by group.
  enum class Step { kPrepare, kMultiply };

  // parts: not empty, all of one shape and format; stay the caller's. Memory for counters and
  // prepared rows comes from the carver. Before items run, every member of the team, of this size,
  // needs scratch() bytes of its own. row_weights: [out.rows] by which the outputs, in F32, are
  // multiplied while they are in cache; or empty.
  PipelinedProduct(MlpHalf half, std::span<const ExpertRows> parts, const RowSource& x, Rows out,
                   int team_size, Carver& carver, std::span<const float> row_weights = {});
  // The memory that a product takes for `parts` parts and `rows` rows of this type.
  static size_t bytes(const PackedWeights& weights, int64_t parts, int64_t rows, DType x);

  int64_t num_parts() const { return std::ssize(parts_); }
  // The items of a step in all parts before this one.
  int64_t items_before(Step step, int64_t part) const;
  size_t scratch() const;
  // Items may run at the same time: a multiplication waits for its part's tiles, and tiles for what
  // they are made of in `before`, the product whose output is x. So all of these must have been
  // begun. scratch: the running member's.
  void run(Step step, int64_t part, int64_t item, const PipelinedProduct* before,
           std::byte* scratch) const noexcept;

 private:
  struct Progress {
    std::atomic<int32_t> tiles, groups;  // prepared, computed
    int64_t first_tile;                  // tiles of all parts before this one
  };

  const PackedWeights& weights(const ExpertRows& part) const {
    return half_ == MlpHalf::kGateUp ? part.mlp->gate_up_packed() : part.mlp->down_packed();
  }
  void prepare(int64_t part, int64_t tile, const PipelinedProduct* before,
               std::byte* scratch) const noexcept;
  void multiply(int64_t part, int64_t group, const PipelinedProduct* before,
                std::byte* scratch) const noexcept;
  void weigh(const ExpertRows& part, PanelRange panels) const noexcept;
  void wait_until_finished(int64_t part) const noexcept;

  MlpHalf half_;
  std::span<const ExpertRows> parts_;
  Operand operand_;
  Rows out_;
  std::span<const float> row_weights_;
  int team_size_;
  int64_t tiles_ = 0;  // the tiles of all parts together
  int64_t panels_, group_panels_,
      groups_;          // panels of a part; panels that are one item; items of a part
  Progress* progress_;  // [parts]
};

// The multiplications from which on a team shares a product. Below it the work is so small (about
// 10 us) that waking the team costs more.
constexpr int64_t kLeastSharedWork = int64_t{1} << 18;

// Calls body(i, member) for i in [0, count), over the team if there is work enough.
template <class Body>
void for_each_item(Team& team, int64_t count, int64_t multiply_adds, const Body& body) {
  if (multiply_adds < kLeastSharedWork) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
  } else {
    team.for_each(count, body);
  }
}

// Runs products of the same parts, each on the output of the one before: a pipeline of their steps,
// through which the parts go in order. While one part is multiplied the rows of the next are
// fetched from where they are, and what a part gives is used while it is still in cache.
void run_pipeline(std::span<const PipelinedProduct> products, int64_t multiply_adds, Team& team);

// The outputs of panels [first, first + count) for all rows of a task, which has x and m. scratch:
// unpack_scratch().
void multiply_panels(const PackedWeights& weights, Product product, PanelRange panels,
                     PanelTask task, const Rows& out, Activation activation,
                     std::byte* scratch) noexcept;
size_t unpack_scratch(const PackedWeights& weights);

}  // namespace trimtab
