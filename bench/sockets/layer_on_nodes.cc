// SPDX-License-Identifier: Apache-2.0
#include "bench/sockets/layer_on_nodes.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "base/cat.h"
#include "base/run_on_nodes.h"
#include "bench/experts/expert_set.h"
#include "bench/experts/expert_stage.h"
#include "bench/experts/layer_bench.h"
#include "bench/machine/ceilings.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

int cores_of(std::span<const MemoryNode> nodes) {
  int cores = 0;
  for (const MemoryNode& node : nodes) cores += static_cast<int>(node.hardware_threads.size());
  return cores;
}

// The stage on one team, with rows and outputs of its own.
class Stage {
 public:
  // set: made where the weights shall be.
  Stage(const ModelShape& model, const WeightDType& dtype, const ExpertSet& set, int64_t most,
        Communicator& comm, Team& team)
      : stage_(model, make_experts(model, dtype, set), most, comm, team),
        x_memory_(shape_bytes(dtype.rows, most, model.hidden)),
        out_memory_(cells(most, model.hidden) * sizeof(float)),
        x_(x_memory_.data(), most, model.hidden, model.hidden, dtype.rows),
        out_(out_memory_.as<float>(), most, model.hidden) {
    fill_random(x_, 1.0, 4, team);
  }
  void run(const Picks& picks, int64_t tokens) {
    stage_.run(x_.slice(0, tokens), picks, out_.slice(0, tokens));
  }
  Rows out() const { return out_; }

 private:
  ExpertStage stage_;
  Buffer x_memory_, out_memory_;
  Rows x_, out_;
};

// The times of round(call), after a first one that does not count.
std::vector<double> times_of(const NodeEffort& effort, const std::function<void(int64_t)>& round) {
  std::vector<double> ms;
  round(0);
  const Stopwatch whole(CLOCK_MONOTONIC);
  while (std::ssize(ms) < effort.least || whole.seconds() < effort.seconds) {
    const Stopwatch watch(CLOCK_MONOTONIC);
    round(std::ssize(ms) + 1);
    ms.push_back(1e3 * watch.seconds());
  }
  return ms;
}

// The experts of one node, or of all nodes as one.
class Bench {
 public:
  Bench(std::span<const MemoryNode> nodes, const ModelShape& model, const WeightDType& dtype,
        std::span<const int64_t> tokens, const NodeEffort& effort)
      : nodes_(nodes),
        model_(model),
        dtype_(dtype),
        tokens_(tokens),
        effort_(effort),
        most_(std::ranges::max(tokens)),
        count_(num_cold_experts(model, dtype, cold_bytes(effort.memory))) {}

  // Weights on `memory`, work on `cores`.
  std::vector<NodeLayoutRow> on_one_team(NodeLayout layout, std::span<const MemoryNode> memory,
                                         std::span<const MemoryNode> cores) {
    std::optional<ExpertSet> set;
    const FirstTouch touch =
        layout == NodeLayout::kInterleaved ? FirstTouch::kInterleaved : FirstTouch::kLocal;
    run_on_nodes(memory, touch, [&] {
      Team team(cores_of(memory));
      set.emplace(dtype_, model_.hidden, model_.intermediate, count_, team);
    });
    std::vector<NodeLayoutRow> rows;
    run_on_nodes(cores, FirstTouch::kLocal, [&] {
      run_ranks(1, [&](Communicator& comm) {
        Team team(cores_of(cores));
        Stage stage(model_, dtype_, *set, most_, comm, team);
        for (const int64_t tokens : tokens_) {
          const LayerCalls calls(model_, dtype_, tokens, RoutingKind::kNatural);
          rows.push_back(row(layout, team.size(), tokens, calls, times_of(effort_, [&](int64_t c) {
                               stage.run(calls.picks[calls.at(c)], tokens);
                             })));
        }
      });
    });
    return rows;
  }

  // A part of every expert on each node; the first node sums the outputs up.
  std::vector<NodeLayoutRow> sliced() {
    const auto parts = std::ssize(nodes_);
    if (model_.intermediate % parts != 0) {
      throw InvalidArgument(cat("experts of ", model_.intermediate, " can't be cut into ", parts,
                                " equal parts, one a node"));
    }
    ModelShape part = model_;
    part.intermediate /= parts;
    std::vector<NodeLayoutRow> rows;
    std::vector<Rows> outs(nodes_.size());
    std::barrier<> together(parts);
    std::mutex mutex;  // guards error
    std::exception_ptr error;
    std::atomic<bool> failed{false};
    bool goes_on = true;  // written by the first node, read by the others behind a round's start
    std::vector<std::jthread> threads;
    const auto node = [&](int64_t n) {
      Team team(cores_of(nodes_.subspan(cells(n), 1)));
      const ExpertSet set(dtype_, part.hidden, part.intermediate, count_, team);
      run_ranks(1, [&](Communicator& comm) {
        Stage stage(part, dtype_, set, most_, comm, team);
        outs[n] = stage.out();
        for (const int64_t tokens : tokens_) {
          const LayerCalls calls(model_, dtype_, tokens, RoutingKind::kNatural);
          const auto one = [&](int64_t call) {
            together.arrive_and_wait();
            if (failed) throw Error("another node failed");
            if (!goes_on) return false;
            stage.run(calls.picks[calls.at(call)], tokens);
            together.arrive_and_wait();
            if (n == 0) add_parts(outs, tokens, team);
            return true;
          };
          if (n == 0) {
            goes_on = true;
            rows.push_back(
                row(NodeLayout::kSliced, cores_of(nodes_), tokens, calls, times_of(effort_, one)));
            goes_on = false;
            together.arrive_and_wait();
          } else {
            for (int64_t call = 0; one(call);) ++call;
          }
          together.arrive_and_wait();
        }
      });
    };
    for (int64_t n = 0; n < parts; ++n) {
      threads.emplace_back([&, n] {
        try {
          run_on_nodes(nodes_.subspan(cells(n), 1), FirstTouch::kLocal, [&] { node(n); });
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
          failed = true;  // before the others go on
          together.arrive_and_drop();
        }
      });
    }
    threads.clear();
    if (error) std::rethrow_exception(error);
    return rows;
  }

 private:
  static void add_parts(const std::vector<Rows>& outs, int64_t tokens, Team& team) {
    team.for_each(tokens, [&](int64_t t) {
      float* const to = outs[0].row_as<float>(t);
      for (size_t part = 1; part < outs.size(); ++part) {
        const float* const from = outs[part].row_as<float>(t);
        for (int64_t i = 0; i < outs[0].cols; ++i) to[i] += from[i];
      }
    });
  }

  NodeLayoutRow row(NodeLayout layout, int threads, int64_t tokens, const LayerCalls& calls,
                    std::vector<double> ms) const {
    NodeLayoutRow row{layout, threads, tokens, spread_of(std::move(ms)), 0};
    double bytes = 0;
    for (const std::vector<Part>& parts : calls.parts) {
      for (const Part& part : parts) bytes += part.bytes / static_cast<double>(calls.parts.size());
    }
    row.gbytes = 1e-6 * bytes / row.ms.median;
    return row;
  }

  const std::span<const MemoryNode> nodes_;
  const ModelShape& model_;
  const WeightDType& dtype_;
  const std::span<const int64_t> tokens_;
  const NodeEffort& effort_;
  const int64_t most_;
  const int64_t count_;
};

}  // namespace

std::string_view name(NodeLayout layout) {
  switch (layout) {
    case NodeLayout::kOneNode:
      return "one node";
    case NodeLayout::kFirstMemory:
      return "all, memory of the first";
    case NodeLayout::kInterleaved:
      return "all, interleaved";
    case NodeLayout::kSliced:
      return "all, sliced";
  }
  return "unknown";
}

std::vector<NodeLayout> layouts_for(size_t nodes) {
  if (nodes < 2) return {NodeLayout::kOneNode};
  return {NodeLayout::kOneNode, NodeLayout::kFirstMemory, NodeLayout::kInterleaved,
          NodeLayout::kSliced};
}

std::vector<NodeLayoutRow> bench_layer_on_nodes(std::span<const MemoryNode> nodes,
                                                NodeLayout layout, const ModelShape& model,
                                                const WeightDType& dtype,
                                                std::span<const int64_t> tokens,
                                                const NodeEffort& effort) {
  Bench bench(nodes, model, dtype, tokens, effort);
  switch (layout) {
    case NodeLayout::kOneNode:
      return bench.on_one_team(layout, nodes.first(1), nodes.first(1));
    case NodeLayout::kFirstMemory:
      return bench.on_one_team(layout, nodes.first(1), nodes);
    case NodeLayout::kInterleaved:
      return bench.on_one_team(layout, nodes, nodes);
    case NodeLayout::kSliced:
      return bench.sliced();
  }
  return {};
}

}  // namespace trimtab::bench
