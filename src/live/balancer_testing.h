// SPDX-License-Identifier: Apache-2.0
// Balancers over real experts and a made-up load: what every rank's slots get is given, not routed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "comm/testing.h"
#include "live/testing.h"
#include "load/replicas.h"
#include "policy/testing.h"
#include "trimtab/balancer.h"

namespace trimtab::test {

constexpr int kLayers = 3, kExperts = 8;
using Kind = BalanceEvent::Kind;

// [experts] tokens of a step in a layer.
using LoadOf = std::function<std::vector<int64_t>(int64_t step, int layer)>;

inline std::vector<int64_t> level(int64_t, int) {
  return std::vector<int64_t>(kExperts, 40);
}
// Two experts of each layer have most, next to each other.
inline std::vector<int64_t> skewed(int64_t, int layer) {
  std::vector<int64_t> load(kExperts, 10);
  load[static_cast<size_t>(2 * layer)] = 300;
  load[static_cast<size_t>(2 * layer + 1)] = 300;
  return load;
}

// Whatever the map, the ranks are never quite level: 255 rows for 2, 4 or 7.
inline std::vector<int64_t> uneven(int64_t, int) {
  return {1, 2, 4, 8, 16, 32, 64, 128};
}

// One slot more than its share on each rank.
inline Placement start_placement(int ranks) {
  std::vector<int> slots(ranks);
  for (int r = 0; r < ranks; ++r) slots[r] = (r + 1) * kExperts / ranks - r * kExperts / ranks + 1;
  return default_placement(kLayers, kExperts, slots);
}

inline const Table& all_experts() {
  static const Table table = make_table(kLayers * kExperts, Scheme::kW8A8, nullptr);
  return table;
}

// Another random placement each time, no expert twice on a rank.
inline std::shared_ptr<const Policy> random_plans() {
  const auto random = std::make_shared<std::mt19937>(3);
  return std::make_shared<FakePolicy>([random](const Problem& problem) {
    const Placement& now = problem.current;
    std::vector<int> slots;
    for (int r = 0; r < now.num_ranks(); ++r) slots.push_back(now.slots_of_rank(r));
    for (;;) {
      Placement next = test::random_placement(now.num_layers(), now.num_experts(), slots, *random);
      bool twice = false;
      for (int l = 0; l < now.num_layers(); ++l) {
        twice = twice || duplicate_slots(next.logical(l), next.first_slots()) > 0;
      }
      if (!twice) return Plan{next, {}, {}, {}, {}, 0, {}};
    }
  });
}

struct Scenario {
  // However busy the machine is, the same happens at the same steps; use_async where a test is
  // about what may be late.
  BalancerConfig config = {
      .interval = 4, .use_async = false, .split = SplitRule::kRoundRobin, .gate = false};
  std::shared_ptr<const Policy> policy = nullptr;
  std::shared_ptr<const CostModel> cost = nullptr;
  MigratorOptions migration = {};
  LoadOf load = skewed;
  int spares = 3;
  bool shares_weights = false;
  bool keeps_log = true;
  std::function<void(int rank, int64_t step)> during_step = {};
  // By how much longer than the cost model says a rank's experts take; without it nobody knows.
  std::function<double(int rank, int64_t step)> slowness = {};
  std::function<Phase(int64_t step)> phase_of = [](int64_t) { return Phase::kDecode; };
};

// Another random plan in every window.
inline Scenario restless(int64_t interval) {
  Scenario scenario;
  scenario.config.interval = interval;
  scenario.config.plan_above_par = 0;
  scenario.policy = random_plans();
  scenario.load = uneven;
  scenario.spares = 8;
  return scenario;
}

// One rank that serves.
class Server {
 public:
  Server(const Scenario& scenario, Communicator& comm, const Placement& start)
      : scenario_(scenario),
        comm_(comm),
        rank_(comm.rank()),
        slots_(test::make_slots(start, all_experts(), scenario.spares, comm)),
        balancer_(
            scenario.config,
            {.placement = start,
             .policy = scenario.policy,
             .cost = scenario.cost,
             .slots = scenario.shares_weights ? nullptr : slots_.get(),
             .shares_weights = scenario.shares_weights,
             .place =
                 [this](int layer, std::shared_ptr<const Experts> experts,
                        std::shared_ptr<const SplitTable> table) {
                   EXPECT_EQ(table->num_experts, kExperts);
                   EXPECT_EQ(experts == nullptr, scenario_.shares_weights);
                   if (experts) {
                     EXPECT_EQ(experts->num_local(), slots_->num_slots());
                   }
                   if (scenario_.keeps_log) placed_.push_back(layer);
                 },
             .replace_cost =
                 [this](const std::shared_ptr<const CostModel>& cost) { costs_.push_back(cost); },
             .migration = scenario.migration,
             .log =
                 [this](const BalanceEvent& event) {
                   if (scenario_.keeps_log) logged_.push_back(event);
                 }},
            comm) {}

  void step(bool counts = true) {
    balancer_.before_step(scenario_.phase_of(step_));
    const Placement& placement = balancer_.placement();
    int64_t mine = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<int64_t> load = scenario_.load(step_, layer);
      const auto logical = placement.logical(layer);
      const auto row = balancer_.recorder().counts(layer);
      std::vector<int64_t> given(kExperts), copies(kExperts);
      for (const int32_t e : logical) ++copies[e];
      for (int slot = 0; slot < placement.num_slots(); ++slot) {
        const auto e = static_cast<size_t>(logical[slot]);
        const int64_t tokens =
            (given[e] + 1) * load[e] / copies[e] - given[e] * load[e] / copies[e];
        ++given[e];
        const int own = slot - placement.first_slot(rank_);
        if (own < 0 || own >= std::ssize(row)) continue;
        row[own] = static_cast<int32_t>(tokens);
        if (step_ == bad_count_at_ && layer == 1 && own == 0)
          row[own] = std::numeric_limits<int32_t>::min();
        mine += tokens;
      }
    }
    if (scenario_.slowness) {
      int64_t picoseconds = 0;
      for (int layer = 0; layer < kLayers; ++layer) {
        for (const int32_t count : balancer_.recorder().counts(layer))
          picoseconds += scenario_.cost->time(count);
      }
      balancer_.recorder().expert_nanoseconds() += static_cast<int64_t>(
          1e-3 * static_cast<double>(picoseconds) * scenario_.slowness(rank_, step_));
    }
    if (scenario_.during_step) scenario_.during_step(rank_, step_);
    balancer_.after_step(counts);
    if (scenario_.keeps_log) rows_.push_back(mine);
    ++step_;
  }
  void steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) step();
  }

  // Until rank 0 says so: for what happens beside the steps, on a busy machine some time later.
  void steps_until(const std::function<bool()>& done) {
    std::vector<uint8_t> all(comm_.size());
    std::vector<int64_t> bytes(all.size());
    for (int i = 0; i < 10000 && all[0] == 0; ++i) {
      step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint8_t mine = done();
      comm_
          .all_gather_v(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                        bytes)
          .wait_released();
    }
    EXPECT_EQ(all[0], 1) << "not within 10,000 steps";
  }

  // Do the slots hold, bit by bit, what the placement says?
  void expect_right() const {
    const Placement& placement = balancer_.placement();
    const int first = placement.first_slot(rank_);
    for (int l = 0; l < kLayers; ++l) {
      Table table;
      for (int s = 0; s < slots_->num_slots(); ++s) {
        const int32_t logical = placement.logical(l)[first + s];
        ASSERT_EQ(slots_->logical(l, s), logical);
        table.push_back(all_experts()[static_cast<size_t>(l * kExperts + logical)]);
      }
      const std::vector<int32_t> counts(table.size(), 2);
      const test::TestRows x =
          test::random_rows(test::total(counts), table.front()->dtype(), table.front()->hidden());
      test::expect_same_as_mlps(table, x, counts, test::run(*slots_->experts(l), x, counts, 1));
    }
  }
  int64_t count(Kind kind) const {
    return std::ranges::count_if(logged_,
                                 [&](const BalanceEvent& event) { return event.kind == kind; });
  }

  // In this step of its, layer 1 has a count below 0 in slot 0.
  void bad_count_at(int64_t step) { bad_count_at_ = step; }

  Balancer& balancer() { return balancer_; }
  const std::vector<int>& placed() const { return placed_; }
  // What the layers were given to share out by.
  const std::vector<std::shared_ptr<const CostModel>>& costs() const { return costs_; }
  const std::vector<BalanceEvent>& logged() const { return logged_; }
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  const Scenario& scenario_;
  Communicator& comm_;
  const int rank_;
  std::vector<int> placed_;
  std::vector<std::shared_ptr<const CostModel>> costs_;
  std::vector<BalanceEvent> logged_;
  std::vector<int64_t> rows_;  // [steps] of this rank
  int64_t step_ = 0, bad_count_at_ = -1;
  std::unique_ptr<ExpertSlots> slots_;
  Balancer balancer_;
};

// Do all ranks say the same?
inline void expect_agreement(Communicator& comm, std::span<const int32_t> mine) {
  std::vector<int32_t> all(mine.size() * static_cast<size_t>(comm.size()));
  std::vector<int64_t> bytes(comm.size());
  comm.all_gather_v(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), bytes)
      .wait_released();
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], mine[i % mine.size()]) << "rank " << i / mine.size();
}

inline void expect_same_placement(Communicator& comm, const Placement& placement) {
  std::vector<int32_t> all = {static_cast<int32_t>(placement.version())};
  for (int l = 0; l < placement.num_layers(); ++l) {
    all.insert(all.end(), placement.logical(l).begin(), placement.logical(l).end());
  }
  expect_agreement(comm, all);
}

inline double par_of(const Placement& placement, const LoadOf& load) {
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::vector<int64_t> expert_load = load(0, layer);
    std::vector<double> rank(placement.num_ranks()), copies(kExperts);
    const auto logical = placement.logical(layer);
    for (const int32_t e : logical) ++copies[e];
    double total = 0, peak = 0;
    for (int r = 0; r < placement.num_ranks(); ++r) {
      double rows = 0;
      for (int s = placement.first_slot(r); s < placement.first_slot(r + 1); ++s) {
        const auto e = static_cast<size_t>(logical[s]);
        rows += static_cast<double>(expert_load[e]) / copies[e];
      }
      total += rows;
      peak = std::max(peak, rows);
    }
    sum += peak * placement.num_ranks() / total;
  }
  return sum / kLayers;
}

// The least PAR that any placement in these slots has, one expert twice on a rank aside.
inline double least_par(const Placement& slots, const LoadOf& load) {
  Load step{1, kLayers, kExperts, {}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::vector<int64_t> of_layer = load(0, layer);
    step.counts.insert(step.counts.end(), of_layer.begin(), of_layer.end());
  }
  return make_policy("optimal")
      ->rebalance({.load = step, .current = slots})
      .mean(&LayerPrediction::par_after);
}

// How near to that balancing must come.
constexpr double kLevel = 1.05;

}  // namespace trimtab::test
