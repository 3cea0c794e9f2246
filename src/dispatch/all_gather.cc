// SPDX-License-Identifier: Apache-2.0
// Every rank gets every token, lets its own experts work on the picks that are theirs, sums their
// results per token, and the sums are added over the ranks and scattered to the owners of the
// tokens. Gathers ids and weights (8 bytes a pick), not logits. In several levels, each level
// gathers what the one before it gave, and the sums go back in reverse order.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "base/cat.h"
#include "dispatch/collective_exchange.h"
#include "dispatch/dispatcher_of.h"
#include "dispatch/local_picks.h"
#include "dispatch/row_tasks.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct GatherShape : RankShape {
  GatherShape(std::string_view dispatcher, const DispatchShape& shape, int r,
              std::span<const int> sizes)
      : RankShape(dispatcher, shape, r), levels(sizes.begin(), sizes.end()) {
    const int64_t product =
        std::accumulate(levels.begin(), levels.end(), int64_t{1}, std::multiplies());
    if (levels.empty()) levels.push_back(ranks);
    terms.groups = hash_of(levels);
    if (std::ranges::any_of(levels, [](int size) { return size < 1; }) ||
        (!sizes.empty() && product != ranks)) {
      throw InvalidArgument(cat(dispatcher, ": groups of ", product, " ranks in all for ", ranks));
    }
  }
  std::vector<int> levels;  // ranks of each level's group
};

// The tokens of some ranks, one rank's after another's.
struct Gathered {
  ScaledRows rows;
  std::span<int32_t> ids;    // [tokens, top_k]
  std::span<float> weights;  // [tokens, top_k]
};

struct Level {
  Communicator* comm;
  Gathered all;  // of the ranks of this level's group
  std::array<std::span<int64_t>, 4>
      bytes_of_rank;              // [ranks of the group] of x, scales, ids and weights
  std::span<int64_t> part_sizes;  // [ranks of the group] floats of each one's tokens
  Rows sums;  // f32 [tokens before this level, hidden], in the block of the rows
  std::array<Pending, 4> gathers;
  Pending scatter;
  int64_t num_tokens;  // gathered
};

struct Memory {
  CollectiveExchange::TermsMemory terms;
  std::span<Level> levels;
  // f32 [all tokens, hidden] this rank's experts' part of every token. Before, the tokens of the
  // last level and `own` are there.
  Rows parts;
  ScaledRows own;  // rows that do not lie side by side in the request
  LocalPicks::Memory local;
};

std::span<float> floats_of(Rows rows) {
  return {reinterpret_cast<float*>(rows.data), cells(rows.rows, rows.cols)};
}

// The rows, copied if need be to where they lie side by side.
ConstRows side_by_side(ConstRows x, Rows room, Team& team) {
  if (x.stride == x.cols || x.rows <= 1) return x;
  const Rows copy = room.slice(0, x.rows);
  copy_rows(x, copy, team);
  return copy;
}

class AllGatherExchange final : public CollectiveExchange {
 public:
  using Shape = GatherShape;
  static constexpr const DispatcherKind& kKind = kind_of("all_gather");
  static Memory plan(Carver& carver, const GatherShape& shape);
  static std::vector<std::unique_ptr<Communicator>> make_groups(const GatherShape& shape,
                                                                Communicator& comm);
  static void check(const GatherShape& shape, const Lane& lane);

  AllGatherExchange(const GatherShape& shape, const Request& request, Lane& lane,
                    const Memory& memory)
      : CollectiveExchange(shape, request, lane, memory.terms),
        m_(memory),
        picks_(shape, memory.local) {
    for (size_t l = 0; l < m_.levels.size(); ++l) {
      m_.levels[l].comm = m_.levels.size() == 1 ? &lane.comm : lane.groups[l];
    }
    start_gather(m_.levels[0],
                 {side_by_side(request.x, m_.own.x, team_),
                  side_by_side(request.scales, m_.own.scales, team_)},
                 request.ids, request.weights);
  }

 private:
  bool go_to(Stage stage, bool block) override;
  Pending start_the_rest() override;
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override;

  void start_gather(Level& level, ConstScaledRows rows, std::span<const int32_t> ids,
                    std::span<const float> weights);
  void start_next_gather();
  void measure(Level& level) const;
  bool sum_parts(bool block);
  void start_scatter(Rows parts);

  const Memory m_;
  LocalPicks picks_;
  size_t started_ = 1;     // gathers, by level
  size_t gathered_ = 0;    // levels
  size_t scattering_ = 0;  // the level whose sums are in flight
  ConstRows y_;
  Left left_ = Left::kWeightAndSum;
  bool summed_ = false;
};

Memory AllGatherExchange::plan(Carver& carver, const GatherShape& shape) {
  Memory m;
  m.terms = plan_terms(carver, shape);
  m.levels = carver.take<Level>(std::ssize(shape.levels));
  ScaledRows all;
  const auto plan_before_parts = [&](Carver before) {
    m.own = take_scaled_rows(before, shape.max_tokens, shape);
    all = take_scaled_rows(before, shape.all_tokens(), shape);
    return before.used();
  };
  const size_t part_bytes = shape_bytes(DType::kF32, shape.all_tokens(), shape.hidden);
  std::byte* const parts =
      carver.take_bytes(std::max(part_bytes, plan_before_parts(Carver(nullptr))));
  plan_before_parts(Carver(parts));
  m.parts = Rows(parts, shape.all_tokens(), shape.hidden, shape.hidden, DType::kF32);
  // Sums come back when the experts' answers have gone into the parts.
  size_t sum_bytes = 0;
  for (int64_t tokens = shape.max_tokens; const int size : shape.levels) {
    sum_bytes += Workspace::padded(shape_bytes(DType::kF32, tokens, shape.hidden));
    tokens *= size;
  }
  m.local = LocalPicks::plan(carver, shape, shape.max_rows(), sum_bytes);
  Carver sums(m.local.block.front(sum_bytes).data());
  int64_t tokens = shape.max_tokens;
  for (size_t l = 0; l < shape.levels.size(); ++l) {
    Level level{};
    level.sums = sums.take_rows(tokens, shape.hidden, DType::kF32);
    tokens *= shape.levels[l];
    const bool last = l + 1 == shape.levels.size();
    level.all = {last ? all : take_scaled_rows(carver, tokens, shape),
                 carver.take<int32_t>(tokens * shape.top_k),
                 carver.take<float>(tokens * shape.top_k)};
    for (auto& bytes : level.bytes_of_rank) bytes = carver.take<int64_t>(shape.levels[l]);
    level.part_sizes = carver.take<int64_t>(shape.levels[l]);
    if (!carver.measuring()) std::construct_at(&m.levels[l], level);
  }
  return m;
}

std::vector<std::unique_ptr<Communicator>> AllGatherExchange::make_groups(const GatherShape& shape,
                                                                          Communicator& comm) {
  std::vector<std::unique_ptr<Communicator>> groups;
  if (shape.levels.size() == 1) return groups;
  int inner = 1;  // ranks that the levels before this one bring together
  for (const int size : shape.levels) {
    const int block = comm.rank() / (inner * size);
    groups.push_back(comm.split(block * inner + comm.rank() % inner, comm.rank()));
    inner *= size;
  }
  return groups;
}

void AllGatherExchange::check(const GatherShape& shape, const Lane& lane) {
  if (shape.levels.size() == 1) return;  // over the lane's own group
  bool fits = lane.groups.size() == shape.levels.size();
  for (size_t l = 0; fits && l < shape.levels.size(); ++l)
    fits = lane.groups[l]->size() == shape.levels[l];
  if (!fits) {
    throw InvalidArgument(cat(kKind.name, " in ", shape.levels.size(),
                              " levels needs a group of each level's size; the lane ", "has ",
                              lane.groups.size(), " groups"));
  }
}

void AllGatherExchange::start_gather(Level& level, ConstScaledRows rows,
                                     std::span<const int32_t> ids, std::span<const float> weights) {
  Communicator& comm = *level.comm;
  level.gathers[0] =
      comm.all_gather_v(bytes_of(rows.x), bytes_of(level.all.rows.x), level.bytes_of_rank[0]);
  if (shape_.scales().cols > 0) {
    level.gathers[1] = comm.all_gather_v(bytes_of(rows.scales), bytes_of(level.all.rows.scales),
                                         level.bytes_of_rank[1]);
  }
  level.gathers[2] = comm.all_gather_v(std::as_bytes(ids), std::as_writable_bytes(level.all.ids),
                                       level.bytes_of_rank[2]);
  level.gathers[3] = comm.all_gather_v(
      std::as_bytes(weights), std::as_writable_bytes(level.all.weights), level.bytes_of_rank[3]);
}

void AllGatherExchange::start_next_gather() {
  const Level& from = m_.levels[gathered_ - 1];
  const int64_t picks = from.num_tokens * request_.top_k;
  start_gather(m_.levels[gathered_], from.all.rows.slice(0, from.num_tokens),
               from.all.ids.first(picks), from.all.weights.first(picks));
  ++started_;
}

// How many tokens each rank has sent. Throws InvalidArgument when sizes do not fit together, as
// they do where terms are equal and nothing is broken on the way.
void AllGatherExchange::measure(Level& level) const {
  const int64_t row_bytes = int64_t{shape_.hidden} * bits(shape_.dtype) / 8;
  const int64_t pick_bytes = request_.top_k * int64_t{sizeof(int32_t)};
  const auto& [x_bytes, scale_bytes, id_bytes, weight_bytes] = level.bytes_of_rank;
  level.num_tokens = 0;
  for (size_t r = 0; r < x_bytes.size(); ++r) {
    const int64_t tokens = x_bytes[r] / row_bytes;
    if (x_bytes[r] % row_bytes != 0 || id_bytes[r] != tokens * pick_bytes ||
        weight_bytes[r] != id_bytes[r]) {
      throw InvalidArgument(cat(
          "all_gather dispatch: rank ", r, " sent ", x_bytes[r], " bytes of x and ", id_bytes[r],
          " of ids, which does not fit hidden ", shape_.hidden, " and top_k ", request_.top_k));
    }
    level.part_sizes[r] = tokens * shape_.hidden;
    level.num_tokens += tokens;
  }
}

// Ranks that differ in their types of rows have started one gather more or less.
Pending AllGatherExchange::start_the_rest() {
  Level& level = m_.levels[0];
  if (shape_.scales().cols > 0) return level.gathers[3];
  return level.comm->all_gather_v({}, {}, level.bytes_of_rank[1]);
}

bool AllGatherExchange::go_to(Stage stage, bool block) {
  switch (stage) {
    case Stage::kArrived:
      for (; gathered_ < m_.levels.size(); ++gathered_) {
        if (gathered_ == started_) start_next_gather();
        Level& level = m_.levels[gathered_];
        if (!std::ranges::all_of(level.gathers, [block](Pending& p) { return done(p, block); }))
          return false;
        measure(level);
      }
      return true;
    case Stage::kReturned:
      if (!sum_parts(block)) return false;
      while (done(m_.levels[scattering_].scatter, block)) {
        if (scattering_ == 0) return true;
        const Rows sums = m_.levels[scattering_--].sums;
        start_scatter(sums);
      }
      return false;
    case Stage::kDrained:
      return std::ranges::all_of(m_.levels, [&](Level& level) {
        const auto is_released = [block](Pending& p) { return released(p, block); };
        return std::ranges::all_of(level.gathers, is_released) && released(level.scatter, block);
      });
  }
  return false;
}

Tokens AllGatherExchange::arrange() {
  const Level& last = m_.levels.back();
  const int64_t picks = last.num_tokens * request_.top_k;
  return picks_.arrange({last.all.rows.slice(0, last.num_tokens), last.all.ids.first(picks),
                         last.all.weights, request_.top_k, request_.weight_on_input},
                        team_);
}

// The parts of the tokens that level scattering_ has gathered, back to the ranks that they came
// from.
void AllGatherExchange::start_scatter(Rows parts) {
  Level& level = m_.levels[scattering_];
  const int64_t own = scattering_ == 0 ? request_.x.rows : m_.levels[scattering_ - 1].num_tokens;
  level.sums = level.sums.slice(0, own);
  level.scatter =
      level.comm->reduce_scatter_v(floats_of(parts), level.part_sizes, floats_of(level.sums));
}

void AllGatherExchange::publish(ConstRows y, Left left) {
  y_ = y;
  left_ = left;
  sum_parts(false);
}

// Once no peer reads this rank's own rows any more, which are where the parts are to be.
bool AllGatherExchange::sum_parts(bool block) {
  if (summed_) return true;
  const auto is_released = [block](Pending& gather) { return released(gather, block); };
  if (!std::ranges::all_of(m_.levels[0].gathers, is_released)) return false;
  const Rows parts = m_.parts.slice(0, m_.levels.back().num_tokens);
  picks_.sum(y_, left_, parts, team_);
  scattering_ = m_.levels.size() - 1;
  start_scatter(parts);
  return summed_ = true;
}

void AllGatherExchange::combine(Rows out) {
  copy_rows(m_.levels[0].sums, out, team_);
}

}  // namespace

std::unique_ptr<Dispatcher> make_all_gather_dispatcher(const DispatchShape& shape, int rank,
                                                       std::span<const int> levels) {
  return std::make_unique<DispatcherOf<AllGatherExchange>>(shape, rank, levels);
}

}  // namespace trimtab
