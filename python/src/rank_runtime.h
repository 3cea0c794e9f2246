// SPDX-License-Identifier: Apache-2.0
// The experts of a model's layers, run expert-parallel over ranks that are processes: each process
// has one RankRuntime, which is its rank. Whoever has routed hands in tokens with their expert ids
// and weights. With a balancer, experts move between the ranks while they serve.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "expert_table.h"
#include "rank_pass.h"
#include "rank_threads.h"
#include "trimtab/balancer.h"
#include "trimtab/communicator.h"
#include "trimtab/expert_slots.h"
#include "trimtab/layer.h"
#include "trimtab/layout.h"
#include "trimtab/placement.h"

namespace trimtab::python {

struct RankRuntimeOptions {
  int threads = 1;                        // of this rank
  std::string dispatcher = "auto";        // as choose_dispatcher()
  int64_t max_tokens = 2048;              // of this rank in one call
  std::optional<double> row_budget = {};  // as DispatchWish
  // Ranks with the same sequences all bring the same tokens, and each gets the whole output. None:
  // each rank has tokens of its own (dp), or as same_tokens says.
  std::optional<ParallelLayout> layout = {};
  bool share_openmp = true;  // as RankThreads
  // All ranks bring the same tokens: each takes an even share through the layer, and the rows of
  // the others are zero in its output, so that the sum over the ranks is whole. Without a layout.
  bool same_tokens = false;
  // A balancer's configuration as JSON (parse_balancer_config()); empty: experts stay where they
  // are.
  std::string balancer = {};
  // What an expert costs, as expert_cost.h names it; the balancer's split rule "time" needs it.
  std::string cost = {};
  // The same on every rank. Experts that may move leave weighing and summing to the end.
  WeightUse weights = {};
  int redundant = 0;  // slots of all ranks beyond one for each expert; ranks must divide it
  // Where experts are when the first call comes; `redundant` is not heeded then. None: in order,
  // the first ones of a rank once more in its redundant slots.
  std::optional<Placement> placement = std::nullopt;
  std::string version = {};  // of the program: ranks with others are refused
};

class RankRuntime {
 public:
  // num_experts: of all ranks; rank r brings those from r * num_experts / ranks on, as many on
  // each. Where the layout has experts in parts, a rank has its part of all of them. Throws
  // InvalidArgument.
  RankRuntime(std::shared_ptr<Communicator> comm, int num_experts, int top_k,
              RankRuntimeOptions options);
  ~RankRuntime();
  RankRuntime(const RankRuntime&) = delete;
  RankRuntime& operator=(const RankRuntime&) = delete;

  // This rank's experts of the next layer. Returns its number: 0, 1, ... Throws InvalidArgument for
  // other sizes or another format than the first one's, and after start().
  int add_layer(std::shared_ptr<const ExpertTable> table);
  // Collective, once, after the last add_layer(). Throws InvalidArgument, on every rank, where
  // ranks have other layers, settings or versions of Trimtab.
  void start();
  // Collective. A call of layer 0 begins a step: `counts` tells whether its rows are load for the
  // balancer on this rank (padding and trial runs are none); a step counts when any rank says so.
  // Throws InvalidArgument for what does not fit, and CommError when a peer fails.
  void forward(int layer, const RoutedTokens& call, bool counts);

  int num_layers() const { return static_cast<int>(tables_.size() + layers_.size()); }
  int num_experts() const { return num_experts_; }
  int top_k() const { return top_k_; }
  const Communicator& comm() const { return *comm_; }
  const ParallelLayout& layout() const { return layout_; }
  // The dispatcher's name and the most rows that this rank's experts get at once (0: no budget).
  // Both throw InvalidArgument before start().
  std::string dispatcher() const;
  int64_t row_budget() const;
  // [layers][slots] the experts in the slots now.
  const Placement& placement() const;
  // [layers, experts] the rows that this rank's experts have got since the last call of this.
  // Summed over the ranks it is the load.
  std::vector<int64_t> take_load();
  // The rule that shares tokens out over replicas.
  SplitRule split() const { return shares_out() ? balancer_config_.split : SplitRule::kStatic; }
  // What an expert costs, the same on every rank; null: none was asked for, or before start().
  const CostModel* cost() const { return cost_.get(); }
  // The text for Prometheus; empty without a balancer. Complete on rank 0.
  std::string metrics() const;
  int64_t layers_switched() const;
  int64_t steps() const { return steps_; }
  // The bytes of this rank's experts, the spares of the balancer among them.
  size_t weight_bytes() const { return weight_bytes_; }

 private:
  struct StepWord {
    uint64_t status;
    uint64_t counts;
  };

  int ranks() const { return comm_->size(); }
  // This rank's experts at the beginning: the first one's number, how many, and which part.
  int num_own() const { return layout_.ep ? num_experts_ / ranks() : num_experts_; }
  int first_own() const { return layout_.ep ? comm_->rank() * num_own() : 0; }
  int own_part() const { return layout_.ep ? 0 : layout_.tp_rank(comm_->rank()); }
  void check_parts(const ExpertTable& table) const;
  void take_given_cost();
  void require_same_ranks();
  Placement loaded_placement() const;
  std::shared_ptr<const Dispatcher> make_dispatcher();
  bool shares_out() const;
  void make_slots();
  void move_to(const Placement& target);
  void count_load(int layer);
  std::shared_ptr<const Experts> experts_of(const ExpertTable& table, Format format) const;
  void make_layers(const std::shared_ptr<const Dispatcher>& dispatcher);
  void make_balancer();
  void agree_on_cost(const Experts& experts);
  void begin_step(bool counts);
  void on_threads(const std::function<void()>& body);

  std::shared_ptr<Communicator> comm_;
  const int num_experts_, top_k_;
  const RankRuntimeOptions options_;
  const ParallelLayout layout_;
  BalancerConfig balancer_config_;
  std::shared_ptr<const CostModel> cost_;  // null: rows
  std::string cost_error_;                 // why this rank could not read its costs
  RankThreads threads_;
  std::vector<std::shared_ptr<const ExpertTable>> tables_;  // until start()
  int64_t hidden_ = 0;                                      // of all layers
  WeightFormat format_;

  bool started_ = false;
  std::string dispatcher_name_;
  std::unique_ptr<Placement> placement_;
  std::unique_ptr<ExpertSlots> slots_;
  std::vector<RankLayer> layers_;
  std::unique_ptr<RankState> state_;
  std::unique_ptr<Communicator> steps_comm_;  // over which ranks agree on steps
  std::unique_ptr<Balancer> balancer_;
  std::vector<StepWord> step_words_;     // [ranks]
  std::vector<int64_t> step_bytes_;      // [ranks]
  std::vector<uint64_t> step_statuses_;  // [ranks]
  bool step_is_open_ = false, step_counts_ = false;
  int64_t steps_ = 0;
  std::vector<int64_t> load_;  // [layers, experts] since the last take_load()
  size_t weight_bytes_ = 0;
};

}  // namespace trimtab::python
