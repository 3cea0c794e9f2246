// SPDX-License-Identifier: Apache-2.0
// The experts of a model's layers, run expert-parallel over ranks that are threads of this process:
// whoever has routed hands in tokens with their expert ids and weights. Any thread may call; calls
// run one after another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "expert_table.h"
#include "rank_pass.h"
#include "rank_threads.h"
#include "trimtab/cost_model.h"
#include "trimtab/dispatcher.h"
#include "trimtab/layout.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"

namespace trimtab::python {

struct RuntimeOptions {
  int ranks = 1;
  int threads = 1;  // of each rank
  // None: whole experts, and each rank takes a slice of a call's tokens: tp = ranks. All tokens of
  // a call are of one caller, so dp is 1.
  std::optional<ParallelLayout> layout = {};
  std::string dispatcher = "auto";  // as choose_dispatcher()
  // Tokens of one pass, of all ranks together; longer calls take several. Memory is reserved for
  // them.
  int64_t max_tokens = 2048;
  std::optional<double> row_budget = {};  // as DispatchWish
  bool share_openmp = true;               // as RankThreads
  // How tokens are shared out over replicas, none: kTime with a cost, else kStatic; and what an
  // expert costs, as expert_cost.h names it.
  std::optional<SplitRule> split = {};
  std::string cost = {};
  WeightUse weights = {};
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

class MoeRuntime {
 public:
  // like: a layer that all others have the sizes and format of; it is not added. Throws
  // InvalidArgument.
  MoeRuntime(const ExpertTable& like, int top_k, RuntimeOptions options);
  ~MoeRuntime();
  MoeRuntime(const MoeRuntime&) = delete;
  MoeRuntime& operator=(const MoeRuntime&) = delete;

  // Returns its number: 0, 1, ... Throws InvalidArgument for other sizes, or another format, than
  // the first one's.
  int add_layer(std::shared_ptr<const ExpertTable> table);
  // From the next call on the layer's experts are in these slots. logical: [slots]; slot s is on
  // rank s / (slots / ranks). Empty: as at the beginning, experts in order. Weights are not copied.
  // Throws InvalidArgument when ranks do not divide slots, when an expert has no slot, for experts
  // in parts, which are on every rank, and for replicas where each rank has all tokens.
  void place(int layer, std::span<const int32_t> logical);
  // Throws InvalidArgument for what does not fit, before anything is done; Error after a fork, in
  // whose child the ranks do not exist. between: called between passes on the calling thread; what
  // it throws ends the call.
  void forward(int layer, const RoutedTokens& call, const std::function<void()>& between);
  // [layers, experts] Tokens that each expert has had since the last reset.
  std::vector<int64_t> load() const;
  void reset_load();
  // [slots of the layer] Rows that each slot has got since it was placed or load was reset.
  std::vector<int64_t> slot_rows(int layer);

  int num_layers() const;
  int num_experts() const { return num_experts_; }
  int64_t hidden() const { return hidden_; }
  int top_k() const { return top_k_; }
  WeightFormat format() const { return format_; }
  const RuntimeOptions& options() const { return options_; }
  SplitRule split() const { return *options_.split; }  // the one in use
  const ParallelLayout& layout() const { return layout_; }
  std::string dispatcher() const { return dispatcher_name_; }
  int64_t row_budget() const { return row_budget_; }  // rows of a rank at once; 0: none
  const std::shared_ptr<const CostModel>& cost() const { return cost_; }  // null: not asked for
  const char* threads() const;                                            // as RankThreads
  size_t weight_bytes() const;
  size_t workspace_bytes() const;  // the most that the ranks' calls have taken by now

 private:
  struct Layer {
    std::shared_ptr<const ExpertTable> table;
    Placement placement;           // of one layer
    std::vector<RankLayer> ranks;  // [ranks]
    std::vector<int64_t> load;     // [experts] under earlier placements
    std::vector<int64_t> total_load(const ParallelLayout& layout) const;
  };

  // number: the layer's.
  Layer place_table(std::shared_ptr<const ExpertTable> table, Placement placement,
                    int number) const;
  std::shared_ptr<const Dispatcher> dispatcher_for(const Placement& placement, int rank) const;
  Layer& layer_at(int layer);
  void check(const RoutedTokens& call) const;
  void check_process() const;
  void make_room(const Layer& layer);
  void make_rank_states(const Layer& layer);
  void run_ranks(Layer& layer, const RoutedTokens& pass);
  void rethrow_failure();
  Placement placement_of(std::span<const int32_t> logical) const;
  Output output_of(int rank) const;
  // The most tokens that a rank takes through a layer.
  int64_t rank_tokens() const {
    return token_slice(options_.max_tokens, layout_.token_slices(), 0).count;
  }

  RuntimeOptions options_;
  ParallelLayout layout_;
  int top_k_, num_experts_;
  int64_t hidden_;
  WeightFormat format_;
  std::string dispatcher_name_;
  int64_t row_budget_ = 0;
  std::shared_ptr<const CostModel> cost_;
  int process_;  // that the threads are in

  mutable std::mutex mutex_;  // one call at a time; guards all below
  std::vector<Layer> layers_;
  std::unique_ptr<RankThreads> threads_;
  size_t rank_bytes_ = 0;  // workspace that any layer takes at most
  // [ranks], or none: then the next call makes them.
  std::vector<std::unique_ptr<RankState>> rank_states_;
};

}  // namespace trimtab::python
