// SPDX-License-Identifier: Apache-2.0
#include "moe_runtime.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/cat.h"
#include "base/rows.h"
#include "expert_cost.h"
#include "rank_layout.h"
#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

RuntimeOptions checked(RuntimeOptions options) {
  if (options.ranks < 1) throw InvalidArgument(cat("ranks must be at least 1, is ", options.ranks));
  if (options.threads < 1)
    throw InvalidArgument(cat("threads of a rank must be at least 1, is ", options.threads));
  if (options.max_tokens < options.ranks) {
    throw InvalidArgument(cat("max_tokens must be at least the number of ranks, ", options.ranks,
                              ", is ", options.max_tokens));
  }
  if (!options.split) options.split = options.cost.empty() ? SplitRule::kStatic : SplitRule::kTime;
  check_cost_of_rule(*options.split, options.cost);
  return options;
}

ParallelLayout checked_layout(const RuntimeOptions& options) {
  const ParallelLayout layout = options.layout.value_or(ParallelLayout{.tp = options.ranks});
  check_layout(layout, options.ranks);
  if (layout.dp > 1) {
    throw InvalidArgument(
        cat("layout ", name(layout),
            ": data-parallel groups have tokens of their own, but the ranks of this runtime share "
            "those of one caller; take dp 1, or a RankRuntime in each process"));
  }
  if (layout.sums_parts() && options.split != SplitRule::kStatic) {
    throw InvalidArgument(
        cat("layout ", name(layout),
            ": its ranks sum parts, so nothing is shared out over replicas; split "
            "is static, not ",
            name(*options.split)));
  }
  return layout;
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

MoeRuntime::MoeRuntime(const ExpertTable& like, int top_k, RuntimeOptions options)
    : options_(checked(std::move(options))),
      layout_(checked_layout(options_)),
      top_k_(top_k),
      num_experts_(like.num_experts()),
      hidden_(like.hidden()),
      format_(like.format()),
      process_(getpid()),
      threads_(
          std::make_unique<RankThreads>(options_.ranks * options_.threads, options_.share_openmp)) {
  if (top_k < 1 || top_k > num_experts_) {
    throw InvalidArgument(cat("top_k must be in [1, ", num_experts_, "], is ", top_k));
  }
  const auto made = dispatcher_for(placement_of({}), 0);
  dispatcher_name_ = made->name();
  row_budget_ = made->shape().row_budget;
  if (made->format() != Format::kStandard)
    throw InvalidArgument(cat("dispatcher ", dispatcher_name_, " does not bring standard rows"));
  cost_ = given_cost(options_.cost, like, options_.threads);
  if (options_.cost == "measure") {
    const auto own = like.experts();
    const auto experts = make_grouped_experts({own.begin(), own.end()}, hidden_, format_);
    cost_ = std::make_shared<const CostModel>(measured_cost(*experts, options_.threads));
  }
}

MoeRuntime::~MoeRuntime() {
  if (getpid() == process_) return;
  // The child of a fork has no such threads to join.
  static_cast<void>(threads_.release());
  for (auto& rank : rank_states_) static_cast<void>(rank.release());
}

std::shared_ptr<const Dispatcher> MoeRuntime::dispatcher_for(const Placement& placement,
                                                             int rank) const {
  const std::vector<int32_t> hosts(options_.ranks);
  const Placement of_lane = placement_of_lane(layout_, placement);
  const bool shares_out = split() != SplitRule::kStatic;
  DispatchShape shape{.max_tokens = rank_tokens(),
                      .hidden = static_cast<int>(hidden_),
                      .top_k = top_k_,
                      .dtype = format_.rows(),
                      .first_slots = of_lane.first_slots()};
  if (shares_out) shape.num_experts = num_experts_;
  return make_rank_dispatcher(layout_, shape, rank, hosts,
                              {.dispatcher = options_.dispatcher,
                               .row_budget = options_.row_budget,
                               .shares_out = shares_out});
}

// The slots of a layer, as many on each rank.
Placement MoeRuntime::placement_of(std::span<const int32_t> logical) const {
  if (logical.empty()) return placement_of_layout(layout_, 1, num_experts_);
  const auto slots = static_cast<int>(logical.size());
  if (slots % options_.ranks != 0)
    throw InvalidArgument(cat(slots, " slots can't be dealt evenly to ", options_.ranks, " ranks"));
  Placement placement(1, num_experts_, std::vector<int>(options_.ranks, slots / options_.ranks),
                      std::vector<int32_t>(logical.begin(), logical.end()));
  check_placement(layout_, placement);
  return placement;
}

// Ranks that sum parts all have the whole output.
Output MoeRuntime::output_of(int rank) const {
  return layout_.sums_parts() && layout_.tp_rank(rank) != 0 ? Output::kDropped : Output::kWritten;
}

MoeRuntime::Layer MoeRuntime::place_table(std::shared_ptr<const ExpertTable> table,
                                          Placement placement, int number) const {
  Layer layer{std::move(table), std::move(placement), {}, {}};
  layer.load.resize(num_experts_);
  const auto replicas =
      std::make_shared<const SplitTable>(placement_of_lane(layout_, layer.placement), 0);
  for (int r = 0; r < options_.ranks; ++r) {
    const auto experts = layer.table->experts(layout_.ep ? 0 : layout_.tp_rank(r));
    std::vector<std::shared_ptr<const Mlp>> slots;
    for (int s = layer.placement.first_slot(r); s < layer.placement.first_slot(r + 1); ++s) {
      slots.push_back(experts[layer.placement.logical(0)[s]]);
    }
    const size_t num_slots = slots.size();
    MoeLayer::Parts parts;
    parts.replicas = replicas;
    parts.split = split();
    parts.cost = cost_;
    parts.dispatcher = dispatcher_for(layer.placement, r);
    parts.experts = make_grouped_experts(std::move(slots), hidden_, format_, Format::kStandard,
                                         options_.weights.left);
    parts.weight_on_input = options_.weights.on_input;
    parts.layer = number;
    layer.ranks.push_back({.layer = MoeLayer(std::move(parts)),
                           .counts = std::vector<int32_t>(num_slots),
                           .received = std::vector<int64_t>(num_slots)});
  }
  return layer;
}

int MoeRuntime::add_layer(std::shared_ptr<const ExpertTable> table) {
  if (table->num_experts() != num_experts_ || table->hidden() != hidden_ ||
      table->format() != format_) {
    throw InvalidArgument(cat("a layer of ", table->num_experts(), " experts of hidden size ",
                              table->hidden(), " in ", name(table->format()),
                              ", the first one has ", num_experts_, " of ", hidden_, " in ",
                              name(format_)));
  }
  if (table->parts().parts != layout_.expert_parts() || table->parts().part >= 0) {
    throw InvalidArgument(cat("layout ", name(layout_), ": it takes all ", layout_.expert_parts(),
                              " parts of each expert; the weights have ",
                              table->parts().part < 0 ? "all" : "one", " of ",
                              table->parts().parts));
  }
  check_process();
  const std::lock_guard lock(mutex_);
  Layer& layer = layers_.emplace_back(
      place_table(std::move(table), placement_of({}), static_cast<int>(layers_.size())));
  make_room(layer);
  return static_cast<int>(layers_.size()) - 1;
}

void MoeRuntime::place(int layer, std::span<const int32_t> logical) {
  check_process();
  const std::lock_guard lock(mutex_);
  Layer& old = layer_at(layer);
  Layer placed = place_table(old.table, placement_of(logical), layer);
  placed.load = old.total_load(layout_);
  old = std::move(placed);
  make_room(old);
}

MoeRuntime::Layer& MoeRuntime::layer_at(int layer) {
  if (layer < 0 || layer >= std::ssize(layers_)) {
    throw InvalidArgument(cat("layer ", layer, " is not there; there are ", layers_.size()));
  }
  return layers_[layer];
}

void MoeRuntime::make_room(const Layer& layer) {
  for (int r = 0; r < options_.ranks; ++r) {
    const size_t bytes = pass_bytes(layer.ranks[r].layer, rank_tokens(), output_of(r));
    if (bytes <= rank_bytes_) continue;
    rank_bytes_ = bytes;
    rank_states_.clear();
  }
}

void MoeRuntime::make_rank_states(const Layer& layer) {
  auto ends = make_rank_group(options_.ranks, {.timeout = options_.timeout});
  rank_states_.resize(ends.size());
  // Groups are made by all ranks together, and memory is best touched first by those that use it.
  std::vector<std::exception_ptr> errors(ends.size());
  threads_->run([&](int member) {
    if (member % options_.threads != 0) return;
    const int r = member / options_.threads;
    try {
      rank_states_[r] = std::make_unique<RankState>(std::move(ends[r]), layout_,
                                                    layer.ranks[r].layer.dispatcher(), rank_bytes_,
                                                    options_.threads);
    } catch (...) {
      errors[r] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    rank_states_.clear();
    std::rethrow_exception(error);
  }
}

void MoeRuntime::check_process() const {
  if (getpid() == process_) return;
  throw Error(cat(
      "this runtime's ranks are threads of process ", process_, "; this is process ", getpid(),
      ", forked from it: make the runtime (or call trimtab.transformers.enable) after the fork"));
}

void MoeRuntime::check(const RoutedTokens& call) const {
  const int64_t picks = call.x.rows * top_k_;
  if (call.x.cols != hidden_ || call.out.cols != hidden_ || call.out.rows != call.x.rows) {
    throw InvalidArgument(cat("x is [", call.x.rows, ", ", call.x.cols, "], out [", call.out.rows,
                              ", ", call.out.cols, "], wanted both [tokens, ", hidden_, "]"));
  }
  if (call.ids.rows != call.x.rows || call.ids.cols != top_k_ || call.ids.stride != top_k_ ||
      std::ssize(call.weights) != picks) {
    throw InvalidArgument(cat("ids [", call.ids.rows, ", ", call.ids.cols, "] and ",
                              call.weights.size(), " weights for ", call.x.rows, " tokens of ",
                              top_k_, " picks"));
  }
  if (call.ids.dtype != DType::kI64 && call.ids.dtype != DType::kI32)
    throw InvalidArgument(cat("ids must be I64 or I32, not ", name(call.ids.dtype)));
  if (overlap(call.x, call.out)) throw InvalidArgument("x and out overlap");
  if (overlap(call.out, call.ids) || overlap(call.out, std::as_bytes(call.weights)))
    throw InvalidArgument("out overlaps ids or weights");
  for (const DType dtype : {call.x.dtype, call.out.dtype}) {
    if (dtype != DType::kF32 && dtype != DType::kBF16) {
      throw InvalidArgument(cat("x and out must be F32 or BF16, not ", name(dtype)));
    }
  }
}

void MoeRuntime::forward(int layer, const RoutedTokens& call,
                         const std::function<void()>& between) {
  check_process();  // before the lock, which may be held in the child for ever
  check(call);
  const std::lock_guard lock(mutex_);
  Layer& own = layer_at(layer);
  for (int64_t first = 0; first < call.x.rows; first += options_.max_tokens) {
    if (first > 0) between();
    const int64_t count = std::min(options_.max_tokens, call.x.rows - first);
    run_ranks(own, call.slice(first, count));
  }
}

void MoeRuntime::run_ranks(Layer& layer, const RoutedTokens& pass) {
  if (rank_states_.empty()) make_rank_states(layer);
  for (auto& rank : rank_states_) rank->team.admit();
  threads_->run([&](int member) {
    const int r = member / options_.threads;
    if (const int helper = member % options_.threads; helper != 0)
      return rank_states_[r]->team.help(helper);
    const TokenSlice own = token_slice(pass.x.rows, layout_.token_slices(), layout_.slice_of(r));
    run_pass(layer.ranks[r], pass.slice(own.first, own.count), *rank_states_[r], output_of(r));
    rank_states_[r]->team.dismiss();
  });
  rethrow_failure();
}

void MoeRuntime::rethrow_failure() {
  std::exception_ptr cause;
  for (auto& rank : rank_states_) {
    if (!rank->error) continue;
    // Peers of a rank that fails get CommErrors.
    if (!cause || is_comm_error(cause)) cause = rank->error;
  }
  if (!cause) return;
  rank_states_.clear();  // a group that has failed does not work again
  std::rethrow_exception(cause);
}

std::vector<int64_t> MoeRuntime::load() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> all;
  for (const Layer& layer : layers_) {
    const std::vector<int64_t> load = layer.total_load(layout_);
    all.insert(all.end(), load.begin(), load.end());
  }
  return all;
}

void MoeRuntime::reset_load() {
  const std::lock_guard lock(mutex_);
  for (Layer& layer : layers_) {
    std::ranges::fill(layer.load, 0);
    for (RankLayer& rank : layer.ranks) std::ranges::fill(rank.received, 0);
  }
}

std::vector<int64_t> MoeRuntime::slot_rows(int layer) {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> rows;
  for (const RankLayer& rank : layer_at(layer).ranks)
    rows.insert(rows.end(), rank.received.begin(), rank.received.end());
  return rows;
}

std::vector<int64_t> MoeRuntime::Layer::total_load(const ParallelLayout& layout) const {
  std::vector<int64_t> sum = load;
  for (int r = 0; r < placement.num_ranks(); ++r) {
    if (!layout.ep && layout.tp_rank(r) != 0) continue;  // it counts the rows of its group again
    for (int s = 0; s < placement.slots_of_rank(r); ++s) {
      const int32_t expert = placement.logical(0)[placement.first_slot(r) + s];
      sum[expert] += ranks[r].received[s];
    }
  }
  return sum;
}

int MoeRuntime::num_layers() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(layers_.size());
}

const char* MoeRuntime::threads() const {
  const std::lock_guard lock(mutex_);
  return threads_->threads();
}

size_t MoeRuntime::weight_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const Layer& layer : layers_) sum += layer.table->bytes();
  return sum;
}

size_t MoeRuntime::workspace_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& rank : rank_states_) sum += rank->workspace.peak();
  return sum;
}

}  // namespace trimtab::python
