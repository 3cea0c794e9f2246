// SPDX-License-Identifier: Apache-2.0
// Balancers over real experts and a made-up load: what every rank's slots get is given, not routed.
#include "trimtab/balancer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "comm/testing.h"
#include "live/testing.h"
#include "load/replicas.h"
#include "policy/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;
using test::make_table;
using test::Table;

constexpr int kLayers = 3, kExperts = 8;
using Kind = BalanceEvent::Kind;

// [experts] tokens of a step in a layer.
using LoadOf = std::function<std::vector<int64_t>(int64_t step, int layer)>;

std::vector<int64_t> level(int64_t, int) {
  return std::vector<int64_t>(kExperts, 40);
}
// Two experts of each layer have most, next to each other.
std::vector<int64_t> skewed(int64_t, int layer) {
  std::vector<int64_t> load(kExperts, 10);
  load[static_cast<size_t>(2 * layer)] = 300;
  load[static_cast<size_t>(2 * layer + 1)] = 300;
  return load;
}

// Whatever the map, the ranks are never quite level: 255 rows for 2, 4 or 7.
std::vector<int64_t> uneven(int64_t, int) {
  return {1, 2, 4, 8, 16, 32, 64, 128};
}

// One slot more than its share on each rank.
Placement start_placement(int ranks) {
  std::vector<int> slots(ranks);
  for (int r = 0; r < ranks; ++r) slots[r] = (r + 1) * kExperts / ranks - r * kExperts / ranks + 1;
  return default_placement(kLayers, kExperts, slots);
}

const Table& all_experts() {
  static const Table table = make_table(kLayers * kExperts, Scheme::kW8A8, nullptr);
  return table;
}

// Another random placement each time, no expert twice on a rank.
std::shared_ptr<const Policy> random_plans() {
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
  MigratorOptions migration = {};
  LoadOf load = skewed;
  int spares = 3;
  bool keeps_log = true;
  std::function<void(int rank, int64_t step)> during_step = {};
  std::function<Phase(int64_t step)> phase_of = [](int64_t) { return Phase::kDecode; };
};

// Another random plan in every window.
Scenario restless(int64_t interval) {
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
        balancer_(scenario.config,
                  {.placement = start,
                   .policy = scenario.policy,
                   .slots = slots_.get(),
                   .place =
                       [this](int layer, std::shared_ptr<const Experts> experts,
                              std::shared_ptr<const SplitTable> table) {
                         EXPECT_EQ(table->num_experts, kExperts);
                         EXPECT_EQ(experts->num_local(), slots_->num_slots());
                         if (scenario_.keeps_log) placed_.push_back(layer);
                       },
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
      std::this_thread::sleep_for(1ms);
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
  const std::vector<BalanceEvent>& logged() const { return logged_; }
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  const Scenario& scenario_;
  Communicator& comm_;
  const int rank_;
  std::vector<int> placed_;
  std::vector<BalanceEvent> logged_;
  std::vector<int64_t> rows_;  // [steps] of this rank
  int64_t step_ = 0, bad_count_at_ = -1;
  std::unique_ptr<ExpertSlots> slots_;
  Balancer balancer_;
};

// Do all ranks say the same?
void expect_agreement(Communicator& comm, std::span<const int32_t> mine) {
  std::vector<int32_t> all(mine.size() * static_cast<size_t>(comm.size()));
  std::vector<int64_t> bytes(comm.size());
  comm.all_gather_v(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), bytes)
      .wait_released();
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], mine[i % mine.size()]) << "rank " << i / mine.size();
}

void expect_same_placement(Communicator& comm, const Placement& placement) {
  std::vector<int32_t> all = {static_cast<int32_t>(placement.version())};
  for (int l = 0; l < placement.num_layers(); ++l) {
    all.insert(all.end(), placement.logical(l).begin(), placement.logical(l).end());
  }
  expect_agreement(comm, all);
}

double par_of(const Placement& placement, const LoadOf& load) {
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
double least_par(const Placement& slots, const LoadOf& load) {
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

// E3: a cycle while serving: gather loads, plan in the background, move layer by layer, each
//     switched on all ranks at one step.
TEST(BalancerTest, LevelsASkewedLoad) {
  for (const int ranks : rank_counts({2, 4, 7})) {
    const Scenario scenario;
    run_group(ranks, [&](Communicator& comm) {
      const Placement start = start_placement(ranks);
      Server server(scenario, comm, start);
      server.steps(80);
      const Placement& placement = server.balancer().placement();
      EXPECT_GT(par_of(start, skewed), 1.2 * least_par(start, skewed));
      EXPECT_LT(par_of(placement, skewed), kLevel * least_par(start, skewed));
      EXPECT_EQ(server.count(Kind::kSwitched), server.balancer().layers_switched());
      EXPECT_EQ(server.count(Kind::kSwitched), std::ssize(server.placed()));
      EXPECT_GT(server.count(Kind::kSwitched), 0);
      EXPECT_EQ(server.count(Kind::kRolledBack), 0);
      server.expect_right();
      expect_same_placement(comm, placement);
      if (comm.rank() == 0) {
        const BalanceMetrics& metrics = server.balancer().metrics();
        EXPECT_GT(metrics.rebalances, 0);
        EXPECT_GT(metrics.moved_bytes, 0);
        EXPECT_GT(metrics.plan_seconds, 0);
        EXPECT_GT(metrics.balancedness_mean, 1 / par_of(start, skewed));
        EXPECT_LE(metrics.balancedness_min, metrics.balancedness_mean + 1e-12);
        EXPECT_GT(server.logged().front().predicted, 0.1);
        const auto committed =
            std::ranges::find(server.balancer().events(), Kind::kCommitted, &BalanceEvent::kind);
        EXPECT_GT(committed->realised, 0.1);
      }
    });
  }
}

TEST(BalancerTest, LevelLoadMovesNothingInAThousandSteps) {
  Scenario scenario;
  scenario.config.interval = 16;
  const auto random = std::make_shared<std::mt19937>(11);
  std::mutex mutex;
  std::vector<std::vector<int64_t>> drawn;  // [steps * layers], what the ranks together draw
  scenario.load = [&](int64_t step, int layer) {
    const std::lock_guard lock(mutex);
    const auto at = static_cast<size_t>(step * kLayers + layer);
    while (drawn.size() <= at) {
      std::vector<int64_t> load(kExperts);
      for (int token = 0; token < 400; ++token) ++load[(*random)() % kExperts];
      drawn.push_back(load);
    }
    return drawn[at];
  };
  // Without replicas level experts are level ranks.
  const int ranks = rank_counts({4, 2, 1}).front();
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, Placement::linear(kLayers, kExperts, ranks));
    server.steps(1000);
    EXPECT_EQ(server.balancer().metrics().moves, 0);
    EXPECT_EQ(server.count(Kind::kSwitched), 0);
  });
}

// Prompts and new tokens have hot experts of their own: prefill those of skewed(), decode the last
// and the first of each layer. Every third step is prefill, and has ten times the tokens.
Phase mixed_phase(int64_t step) {
  return step % 3 == 0 ? Phase::kPrefill : Phase::kDecode;
}
std::vector<int64_t> of_prefill(int64_t step, int layer) {
  std::vector<int64_t> load = skewed(step, layer);
  for (int64_t& tokens : load) tokens *= 10;
  return load;
}
std::vector<int64_t> of_decode(int64_t, int layer) {
  std::vector<int64_t> load(kExperts, 10);
  load[cells(kExperts - 1 - layer)] = load[cells(layer)] = 200;
  return load;
}
std::vector<int64_t> mixed(int64_t step, int layer) {
  return mixed_phase(step) == Phase::kPrefill ? of_prefill(step, layer) : of_decode(step, layer);
}
// What three steps have together.
std::vector<int64_t> of_both(int64_t, int layer) {
  std::vector<int64_t> load = of_prefill(0, layer);
  const std::vector<int64_t> decode = of_decode(0, layer);
  for (size_t e = 0; e < load.size(); ++e) load[e] += 2 * decode[e];
  return load;
}

Scenario mixed_phases(std::optional<Phase> phase) {
  Scenario scenario;
  scenario.config.interval = 6;
  scenario.config.phase = phase;
  scenario.load = mixed;
  scenario.phase_of = mixed_phase;
  return scenario;
}

// E1: prefill and decode are told apart: which steps count decides what is levelled.
TEST(BalancerTest, LevelsThePhaseThatCounts) {
  struct Case {
    const char* name;
    std::optional<Phase> phase;
    LoadOf levelled;
  };
  for (const Case& of :
       {Case{"prefill", Phase::kPrefill, of_prefill}, Case{"decode", Phase::kDecode, of_decode},
        Case{"all", std::nullopt, of_both}}) {
    for (const int ranks : rank_counts({2, 4})) {
      SCOPED_TRACE(testing::Message() << of.name << ", " << ranks << " ranks");
      const Scenario scenario = mixed_phases(of.phase);
      run_group(ranks, [&](Communicator& comm) {
        const Placement start = start_placement(ranks);
        Server server(scenario, comm, start);
        server.steps(150);
        const Placement& placement = server.balancer().placement();
        EXPECT_GT(server.balancer().layers_switched(), 0);
        EXPECT_LT(par_of(placement, of.levelled), kLevel * least_par(start, of.levelled));
        server.expect_right();
        expect_same_placement(comm, placement);
      });
    }
  }
}

// The ring holds two windows. Where fewer steps than a window's are of the phase by then, those are
// planned on; where none is, nothing is.
TEST(BalancerTest, PlansOnTheFewStepsOfARarePhase) {
  for (const int64_t every : {int64_t{7}, int64_t{1000}}) {
    for (const int ranks : rank_counts({2, 4})) {
      Scenario scenario = mixed_phases(Phase::kPrefill);
      scenario.config.interval = 4;
      scenario.phase_of = [every](int64_t step) {
        return step % every == every - 1 ? Phase::kPrefill : Phase::kDecode;
      };
      scenario.load = [phase_of = scenario.phase_of](int64_t step, int layer) {
        return phase_of(step) == Phase::kPrefill ? of_prefill(step, layer) : of_decode(step, layer);
      };
      run_group(ranks, [&](Communicator& comm) {
        const Placement start = start_placement(ranks);
        Server server(scenario, comm, start);
        server.steps(150);
        const Placement& placement = server.balancer().placement();
        if (every < 100) {
          EXPECT_LT(par_of(placement, of_prefill), kLevel * least_par(start, of_prefill));
        } else {
          EXPECT_EQ(placement.version(), start.version());
        }
        expect_same_placement(comm, placement);
      });
    }
  }
}

// With the gate, as `trimtab run` has it: steps that take a millisecond, of which half waits for
// the busiest rank, repay moves that take microseconds.
TEST(BalancerTest, TheGateLetsAPlanThroughThatPays) {
  for (const std::optional<Phase> phase :
       {std::optional<Phase>(), std::optional(Phase::kPrefill)}) {
    for (const int ranks : rank_counts({2, 4})) {
      Scenario scenario = mixed_phases(phase);
      scenario.config.gate = true;
      scenario.config.split = SplitRule::kSplit;
      scenario.config.expected_life_windows = 1000;
      scenario.during_step = [](int, int64_t) { std::this_thread::sleep_for(1ms); };
      const LoadOf levelled = phase ? of_prefill : of_both;
      run_group(ranks, [&](Communicator& comm) {
        const Placement start = start_placement(ranks);
        Server server(scenario, comm, start);
        server.steps(80);
        EXPECT_GT(server.balancer().layers_switched(), 0);
        EXPECT_LT(par_of(server.balancer().placement(), levelled),
                  kLevel * least_par(start, levelled));
        server.expect_right();
        expect_same_placement(comm, server.balancer().placement());
      });
    }
  }
}

// No time of a step depends on the busiest rank, so no plan saves any.
TEST(BalancerTest, TheGateRefusesAPlanThatDoesNotPay) {
  TRIMTAB_NEEDS_RANKS(2);
  for (const std::optional<Phase> phase :
       {std::optional<Phase>(), std::optional(Phase::kPrefill)}) {
    for (const int ranks : rank_counts({2, 4})) {
      Scenario scenario = mixed_phases(phase);
      scenario.config.gate = true;
      scenario.config.expert_share = 0;
      run_group(ranks, [&](Communicator& comm) {
        const Placement start = start_placement(ranks);
        Server server(scenario, comm, start);
        server.steps(80);
        EXPECT_EQ(server.balancer().layers_switched(), 0);
        EXPECT_EQ(server.balancer().placement().version(), start.version());
        server.expect_right();
        if (comm.rank() != 0) return;
        EXPECT_GE(server.count(Kind::kRejected), 2) << "each window is planned on";
        EXPECT_EQ(server.count(Kind::kRejected), std::ssize(server.logged()));
        EXPECT_EQ(server.balancer().metrics().plans_rejected, server.count(Kind::kRejected));
        EXPECT_GT(server.logged().front().predicted, 0.1);
        EXPECT_NE(server.logged().front().text.find("and save 0 s"), std::string::npos)
            << server.logged().front().text;
      });
    }
  }
}

// A rank whose count of a step is below 0, as one of more than 2^31 rows is in 32 bits: the plan
// has failed on every rank, which says why, and the next windows are planned on.
TEST(BalancerTest, ACountThatIsNoneFailsAPlanAndNoStep) {
  TRIMTAB_NEEDS_RANKS(2);
  for (const int ranks : rank_counts({2, 4})) {
    for (const int bad_rank : {0, ranks - 1}) {
      for (const bool use_async : {false, true}) {
        SCOPED_TRACE(testing::Message() << "rank " << bad_rank << " of " << ranks);
        Scenario scenario;
        scenario.config.use_async = use_async;
        run_group(ranks, [&](Communicator& comm) {
          Server server(scenario, comm, start_placement(ranks));
          server.bad_count_at(comm.rank() == bad_rank ? 2 : -1);
          server.steps_until([&] { return server.balancer().layers_switched() > 0; });
          EXPECT_EQ(server.count(Kind::kFailed), 1);
          EXPECT_EQ(server.balancer().metrics().plans_failed, 1);
          const BalanceEvent& failed = server.logged().front();
          EXPECT_EQ(failed.kind, Kind::kFailed);
          const std::string wanted = comm.rank() == bad_rank ? "window: slot 0 of layer 1 has got"
                                     : comm.rank() == 0      ? "could not pack its window"
                                                             : "another rank could not take part";
          EXPECT_NE(failed.text.find(wanted), std::string::npos) << failed.text;
          server.expect_right();
          expect_same_placement(comm, server.balancer().placement());
        });
      }
    }
  }
}

// What each rank's experts have got, as the metrics have it and as the ranks know it.
void expect_rows_counted(Communicator& comm, Server& server) {
  const std::vector<int64_t>& rows = server.rows();
  const int64_t mine = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::vector<int64_t> all(cells(comm.size())), bytes(all.size());
  comm.all_gather_v(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                    bytes)
      .wait_released();
  if (comm.rank() == 0) {
    EXPECT_EQ(server.balancer().metrics().rank_tokens, all);
  }
}

// Steps while a plan is made and while experts move, steps of either phase, and those after the
// last window.
TEST(BalancerTest, EveryRowIsCountedAtTheEnd) {
  for (const int ranks : rank_counts({1, 2, 4})) {
    for (const bool use_async : {false, true}) {
      for (const int steps : {0, 1, 5, 17, 64}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << steps << " steps");
        Scenario scenario = mixed_phases(Phase::kDecode);
        scenario.config.use_async = use_async;
        run_group(ranks, [&](Communicator& comm) {
          Server server(scenario, comm, start_placement(ranks));
          server.steps(steps);
          server.balancer().finish();
          expect_rows_counted(comm, server);
          EXPECT_THROW(server.step(), InvalidArgument);
        });
      }
    }
  }
}

// The total never falls, and each window brings all that came before it.
TEST(BalancerTest, RowsAreCountedWithEachWindow) {
  const int ranks = rank_counts({4, 2, 1}).front();
  const Scenario scenario;
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(ranks));
    int64_t before = 0;
    for (int i = 0; i < 100; ++i) {
      server.step();
      if (comm.rank() != 0) continue;
      const std::vector<int64_t>& counted = server.balancer().metrics().rank_tokens;
      const int64_t now = std::accumulate(counted.begin(), counted.end(), int64_t{0});
      EXPECT_GE(now, before);
      // skewed() has 660 tokens in each of three layers.
      EXPECT_EQ(now % (3 * 660), 0);
      EXPECT_GE(now, (i - 20) * 3 * 660) << "it lags by a window and a plan at most";
      before = now;
    }
  });
}

TEST(BalancerTest, APlanInFlightEndsWithTheRun) {
  for (const int ranks : rank_counts({2, 4})) {
    for (const bool use_async : {false, true}) {
      Scenario scenario = restless(2);
      scenario.config.use_async = use_async;
      for (int steps = 0; steps < 24; ++steps) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << steps << " steps");
        run_group(ranks, [&](Communicator& comm) {
          Server server(scenario, comm, start_placement(ranks));
          server.steps(steps);
          server.balancer().finish();
          server.expect_right();
          expect_same_placement(comm, server.balancer().placement());
          expect_rows_counted(comm, server);
          EXPECT_EQ(server.count(Kind::kSwitched), server.balancer().layers_switched());
          EXPECT_EQ(server.count(Kind::kRolledBack), 0);
          int64_t applied = 0;
          for (const BalanceEvent& event : server.logged())
            applied += event.kind == Kind::kCommitted && event.moves > 0 ? 1 : 0;
          EXPECT_EQ(server.balancer().metrics().rebalances, applied);
          if (comm.rank() != 0) return;
          EXPECT_EQ(server.count(Kind::kPlanned), server.count(Kind::kCommitted));
        });
      }
    }
  }
}

TEST(BalancerTest, RandomPlansAtEveryStepKeepEveryRankRight) {
  for (const int ranks : rank_counts({2, 4, 7})) {
    for (const bool use_async : {false, true}) {
      Scenario scenario = restless(1);
      scenario.config.use_async = use_async;
      run_group(ranks, [&](Communicator& comm) {
        Server server(scenario, comm, start_placement(ranks));
        for (int i = 0; i < 15; ++i) {
          server.steps(20);
          server.expect_right();
          expect_same_placement(comm, server.balancer().placement());
        }
        EXPECT_EQ(server.balancer().metrics().rolled_back_layers, 0);
        // Gather, plan, share, and a step for each layer.
        if (!use_async && ranks > 1) {
          EXPECT_GT(server.balancer().layers_switched(), 300 / (4 + kLayers) * (kLayers - 1));
        }
      });
    }
  }
}

TEST(BalancerTest, WithoutAsyncTheSameRunSwitchesAtTheSameSteps) {
  TRIMTAB_NEEDS_RANKS(2);
  const int ranks = rank_counts({4, 2}).front();
  using Switch = std::pair<int64_t, int>;  // step, layer
  std::vector<std::vector<Switch>> runs;
  for (const std::chrono::microseconds pace : {0us, 300us}) {
    Scenario scenario = restless(4);
    scenario.policy =
        std::make_shared<FakePolicy>([pace, plans = scenario.policy](const Problem& problem) {
          std::this_thread::sleep_for(pace);
          return plans->rebalance(problem);
        });
    scenario.migration.received = [=](const Move&, std::span<std::byte>) {
      std::this_thread::sleep_for(pace);
    };
    scenario.during_step = [=](int rank, int64_t) { std::this_thread::sleep_for(rank * pace); };
    runs.emplace_back();
    run_group(ranks, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(ranks));
      server.steps(60);
      if (comm.rank() != 0) return;
      for (const BalanceEvent& event : server.logged()) {
        if (event.kind == Kind::kSwitched) runs.back().emplace_back(event.step, event.layer);
      }
    });
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_TRUE(ranks_are_processes() || runs[0].size() >= 2 * kLayers);
}

TEST(BalancerTest, EveryKeptStepCounts) {
  Scenario scenario;
  scenario.config.warmup_steps = 5;
  const int ranks = rank_counts({3, 2, 1}).front();
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(ranks));
    server.steps(7);
    server.step(false);
    server.steps(2);
    EXPECT_EQ(server.balancer().recorder().num_steps(), 4);
    int64_t recorded = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const int64_t rows : server.balancer().recorder().sum(layer, Phase::kDecode))
        recorded += rows;
    }
    EXPECT_EQ(recorded, 4 * server.rows().back());
  });
}

TEST(BalancerTest, StatusesMayGoWithTheCallersOwn) {
  const Scenario scenario;
  const int ranks = rank_counts({4, 2, 1}).front();
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(ranks));
    Balancer& balancer = server.balancer();
    std::vector<uint64_t> statuses(ranks);
    std::vector<int64_t> bytes(statuses.size());
    for (int step = 0; step < 60; ++step) {
      const uint64_t mine = balancer.status();
      comm.all_gather_v(std::as_bytes(std::span(&mine, 1)),
                        std::as_writable_bytes(std::span(statuses)), bytes)
          .wait_released();
      balancer.before_step(Phase::kDecode, statuses);
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int32_t& rows : balancer.recorder().counts(layer)) rows = comm.rank() == 0 ? 100 : 1;
      }
      balancer.after_step();
    }
    EXPECT_GT(ranks == 1 ? 1 : balancer.layers_switched(), 0);
    EXPECT_THROW(balancer.before_step(Phase::kDecode, std::span(statuses).first(0)),
                 InvalidArgument);
  });
}

// What a policy can do wrong: serving goes on, with the old map, and the event says why.
struct BadPlanner {
  const char* name;
  std::function<Plan(const Problem&)> plan;
  Kind kind;
};

// E9: a plan is an immutable, versioned placement; all ranks switch a layer at the same step; a
//     late or failed planner changes nothing.
// B22: a mistake made elsewhere: a planner that stops serving: intervals of 0, a crash, a plan that
//     is dropped unseen.
TEST(BalancerTest, ABadPlannerChangesNothing) {
  const std::vector<BadPlanner> planners = {
      {"throws", [](const Problem&) -> Plan { throw std::runtime_error("no idea"); },
       Kind::kFailed},
      {"throws an int", [](const Problem&) -> Plan { throw 42; }, Kind::kFailed},
      {"forgets an expert",
       [](const Problem& p) -> Plan {
         return {
             Placement(kLayers, kExperts, {p.current.num_slots()},
                       std::vector<int32_t>(static_cast<size_t>(kLayers * p.current.num_slots()))),
             {},
             {},
             {},
             {},
             0,
             {}};
       },
       Kind::kFailed},
      {"plans for other ranks",
       [](const Problem&) -> Plan {
         return {Placement::linear(kLayers, kExperts, 1), {}, {}, {}, {}, 0, {}};
       },
       Kind::kFailed},
  };
  const int ranks = rank_counts({4, 2}).front();
  TRIMTAB_NEEDS_RANKS(2);
  for (const BadPlanner& bad : planners) {
    SCOPED_TRACE(bad.name);
    Scenario scenario;
    scenario.policy = std::make_shared<FakePolicy>(bad.plan);
    run_group(ranks, [&](Communicator& comm) {
      const Placement start = start_placement(ranks);
      Server server(scenario, comm, start);
      server.steps(40);
      EXPECT_EQ(server.balancer().layers_switched(), 0);
      EXPECT_EQ(server.balancer().placement().version(), start.version());
      server.expect_right();
      if (comm.rank() != 0) return;
      EXPECT_GE(server.count(bad.kind), 2) << "it is asked again";
      EXPECT_EQ(server.balancer().metrics().plans_failed, server.count(Kind::kFailed));
      EXPECT_NE(server.logged().front().text, "");
    });
  }
}

TEST(BalancerTest, NobodyWaitsForALatePlanner) {
  TRIMTAB_NEEDS_RANKS(2);
  const int ranks = rank_counts({4, 2}).front();
  for (const bool by_steps : {true, false}) {
    const auto go_on = std::make_shared<std::atomic<bool>>(false);
    const auto asked = std::make_shared<std::atomic<int>>(0);
    Scenario scenario;
    scenario.config.use_async = true;
    scenario.config.plan_deadline_steps = by_steps ? 5 : 0;
    scenario.config.plan_deadline_seconds = by_steps ? 0 : 0.02;
    const std::shared_ptr<const Policy> trim = make_policy("trim");
    scenario.policy = std::make_shared<FakePolicy>([go_on, asked, trim](const Problem& problem) {
      if ((*asked)++ == 0) {
        while (!*go_on) std::this_thread::sleep_for(1ms);
      }
      return trim->rebalance(problem);
    });
    run_group(ranks, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(ranks));
      server.steps_until([&] { return server.count(Kind::kLate) > 0; });
      server.steps(60);
      EXPECT_EQ(server.count(Kind::kLate), 1);
      EXPECT_EQ(server.balancer().layers_switched(), 0);
      if (comm.rank() == 0) {
        EXPECT_EQ(*asked, 1) << "it is not asked while it is busy";
      }
      *go_on = true;
      server.steps_until(
          [&] { return server.balancer().layers_switched() > 0; });  // it is asked again
      server.expect_right();
    });
  }
}

TEST(BalancerTest, APlannerThatHangsIsLeftBehind) {
  TRIMTAB_NEEDS_RANKS(2);
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const auto asked = std::make_shared<std::atomic<int>>(0),
             ended = std::make_shared<std::atomic<int>>(0);
  for (const int64_t deadline : {int64_t{0}, int64_t{3}}) {  // while it is waited for, and after
    Scenario scenario;
    scenario.config.use_async = true;
    scenario.config.plan_deadline_steps = deadline;
    scenario.policy =
        std::make_shared<FakePolicy>([go_on, asked, ended](const Problem& problem) -> Plan {
          ++*asked;
          while (!*go_on) std::this_thread::sleep_for(1ms);
          ++*ended;
          return {problem.current, {}, {}, {}, {}, 0, {}};
        });
    const auto begin = std::chrono::steady_clock::now();
    run_group(2, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(2));
      server.steps_until([&] { return *asked == (deadline > 0 ? 2 : 1); });
      if (deadline > 0) server.steps_until([&] { return server.count(Kind::kLate) == 1; });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  }
  *go_on = true;
  // Only rank 0 plans; with processes it is another one's.
  for (int i = 0; i < 1000 && *ended < 2; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(*ended == 2 || ranks_are_processes());
}

TEST(BalancerTest, ALayerWhoseExpertsDoNotArriveKeepsItsOldOnes) {
  TRIMTAB_NEEDS_RANKS(2);
  const int ranks = rank_counts({4, 2}).front();
  for (const bool corrupt : {true, false}) {
    Scenario scenario = restless(2);
    std::atomic<int> received{0};
    // Layer 1 fails every second time.
    scenario.migration.received = [&](const Move& transfer, std::span<std::byte> message) {
      if (transfer.layer != 1 || ++received % 2 != 0) return;
      if (!corrupt) throw std::runtime_error("the wire is cut");
      message[message.size() / 2] ^= std::byte{4};
    };
    run_group(ranks, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(ranks));
      for (int i = 0; i < 10; ++i) {
        server.steps(30);
        server.expect_right();
        expect_same_placement(comm, server.balancer().placement());
      }
      EXPECT_GT(server.count(Kind::kRolledBack), 0);
      EXPECT_GT(server.count(Kind::kSwitched), 0);
      EXPECT_EQ(server.count(Kind::kRolledBack), server.balancer().metrics().rolled_back_layers);
      for (const BalanceEvent& event : server.logged()) {
        if (event.kind != Kind::kRolledBack) continue;
        EXPECT_EQ(event.layer, 1);
        EXPECT_NE(event.text, "");
      }
    });
  }
}

TEST(BalancerTest, MayEndAtAnyStep) {
  for (const int ranks : rank_counts({2, 4})) {
    const Scenario scenario = restless(2);
    for (int steps = 0; steps < 24; ++steps) {
      run_group(ranks, [&](Communicator& comm) {
        Server server(scenario, comm, start_placement(ranks));
        server.steps(steps);
      });
    }
  }
}

TEST(BalancerTest, GoesOnFromASavedMap) {
  const int ranks = rank_counts({4, 2, 1}).front();
  const Scenario scenario;
  run_group(ranks, [&](Communicator& comm) {
    std::optional<Placement> saved;
    {
      Server server(scenario, comm, start_placement(ranks));
      server.steps(60);
      saved = server.balancer().placement();
    }
    Server again(scenario, comm, *saved);
    again.steps(60);
    EXPECT_EQ(again.balancer().metrics().moves, 0) << "what is level already stays";
    again.expect_right();
  });
}

TEST(BalancerTest, TwoInOneProcessDoNotDisturbEachOther) {
  TRIMTAB_NEEDS_RANKS(2);
  const Scenario scenario;
  const Scenario other = restless(3);
  run_group(2, [&](Communicator& comm) {
    const auto second = comm.duplicate();
    Server a(scenario, comm, start_placement(2)), b(other, *second, start_placement(2));
    for (int i = 0; i < 100; ++i) {
      a.step();
      b.step();
    }
    a.expect_right();
    b.expect_right();
    EXPECT_GT(a.balancer().layers_switched(), 0);
    EXPECT_GT(b.balancer().layers_switched(), a.balancer().layers_switched());
  });
}

TEST(BalancerTest, IdleAndSlowRanksAreWaitedForByNobodyElsesPlan) {
  TRIMTAB_NEEDS_RANKS(2);
  const int ranks = rank_counts({4, 2}).front();
  Scenario scenario;
  scenario.load = [](int64_t step, int layer) {
    return step < 40 ? std::vector<int64_t>(kExperts) : skewed(step, layer);  // nobody has anything
  };
  scenario.during_step = [](int rank, int64_t) {
    if (rank == 1) std::this_thread::sleep_for(500us);
  };
  scenario.config.use_async = true;
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(ranks));
    server.steps(40);
    EXPECT_EQ(server.balancer().layers_switched(), 0);
    server.steps_until([&] { return server.balancer().layers_switched() > 0; });
    server.expect_right();
  });
}

TEST(BalancerTest, ScreeningAppliesNothingAndJudgesOnUnseenSteps) {
  TRIMTAB_NEEDS_RANKS(2);
  const int ranks = rank_counts({4, 2}).front();
  const auto verdict_of = [&](const LoadOf& load, std::shared_ptr<const Policy> policy,
                              int64_t steps) {
    Scenario scenario;
    scenario.config.screen = true;
    scenario.config.interval = 8;
    scenario.config.plan_above_par = 0;
    scenario.load = load;
    scenario.policy = std::move(policy);
    Balancer::Verdict verdict = Balancer::Verdict::kNotEnoughEvidence;
    run_group(ranks, [&](Communicator& comm) {
      const Placement start = Placement::linear(kLayers, kExperts, ranks);
      Server server(scenario, comm, start);
      server.steps(steps);
      EXPECT_EQ(server.balancer().layers_switched(), 0);
      EXPECT_EQ(server.balancer().placement().version(), start.version());
      if (comm.rank() == 0) verdict = server.balancer().verdict();
    });
    return verdict;
  };
  if (ranks_are_processes()) return;  // the verdict is rank 0's
  EXPECT_EQ(verdict_of(skewed, nullptr, 100), Balancer::Verdict::kRecommended);
  EXPECT_EQ(verdict_of(skewed, nullptr, 8), Balancer::Verdict::kNotEnoughEvidence);
  // Without replicas one rank has 7 rows more than the others, wherever experts are.
  const auto nearly_level = [](int64_t, int) {
    return std::vector<int64_t>{40, 40, 40, 40, 40, 40, 40, 47};
  };
  EXPECT_EQ(verdict_of(nearly_level, random_plans(), 100), Balancer::Verdict::kNotRecommended);
  EXPECT_EQ(verdict_of(level, random_plans(), 100), Balancer::Verdict::kNotRecommended);
  EXPECT_EQ(name(Balancer::Verdict::kRecommended), "recommended");
}

TEST(BalancerTest, ADeadPeerIsATypedErrorInTime) {
  TRIMTAB_NEEDS_RANKS(2);
  if (ranks_are_processes()) GTEST_SKIP() << "an end of a process is tested in comm";
  Scenario scenario = restless(2);
  const int ranks = 4;
  scenario.during_step = [](int rank, int64_t step) {
    if (rank == 2 && step == 25) throw std::logic_error("died");
  };
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> told{0};
  EXPECT_THROW(run_group(ranks,
                         [&](Communicator& comm) {
                           try {
                             Server server(scenario, comm, start_placement(ranks));
                             server.steps(200);
                           } catch (const CommError&) {
                             ++told;
                             throw;
                           }
                         },
                         {.timeout = 5s}),
               std::logic_error);
  EXPECT_EQ(told, ranks - 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// With waits of random length wherever the background does something.
TEST(BalancerTest, RandomDelays) {
  for (const int ranks : rank_counts({2, 4})) {
    std::mt19937 random(5);
    std::mutex mutex;
    const auto wait = [&] {
      std::chrono::microseconds time;
      {
        const std::lock_guard lock(mutex);
        time = std::chrono::microseconds(random() % 8 == 0 ? random() % 3000 : random() % 50);
      }
      std::this_thread::sleep_for(time);
    };
    Scenario scenario = restless(1);
    scenario.config.use_async = true;
    scenario.config.plan_deadline_steps = 4;
    scenario.policy =
        std::make_shared<FakePolicy>([&, plans = scenario.policy](const Problem& problem) {
          wait();
          return plans->rebalance(problem);
        });
    scenario.migration.received = [&](const Move&, std::span<std::byte>) { wait(); };
    scenario.during_step = [&](int, int64_t) { wait(); };
    run_group(ranks, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(ranks));
      server.steps(300);
      server.steps_until([&] { return server.balancer().layers_switched() > 0; });
      server.expect_right();
      expect_same_placement(comm, server.balancer().placement());
    });
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

TEST(BalancerTest, MemoryIsFlatOverManyReplans) {
  const bool heavy = std::getenv("TRIMTAB_HEAVY") != nullptr;
  const int64_t replans = heavy ? 10000 : 300;
  const int ranks = rank_counts({2, 1}).front();
  Scenario scenario = restless(1);
  scenario.keeps_log = false;
  run_group(ranks, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(ranks));
    if (ranks == 1) return;  // one rank has nothing to plan
    const auto replan = [&](int64_t times) {
      while (server.balancer().layers_switched() < times * kLayers) server.steps(10);
    };
    replan(replans / 4);
    const int64_t warm = resident_bytes();
    replan(replans);
    // Sanitizers keep freed memory for a while.
    if (comm.rank() == 0 && !kSanitized) {
      EXPECT_LT(resident_bytes() - warm, 2 << 20) << replans << " replans";
    }
    server.expect_right();
  });
}

TEST(BalancerTest, RefusesWhatDoesNotFit) {
  Scenario scenario;
  run_group(rank_counts({2, 1}).front(), [&](Communicator& comm) {
    const int ranks = comm.size();
    const Placement start = start_placement(ranks);
    const auto slots = test::make_slots(start, all_experts(), 2, comm);
    const auto refused = [&](const BalancerConfig& config, Balancer::Parts parts, const char* why) {
      try {
        Balancer balancer(config, std::move(parts), comm);
        ADD_FAILURE() << why;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      }
    };
    const auto place = [](int, std::shared_ptr<const Experts>, std::shared_ptr<const SplitTable>) {
    };
    const Balancer::Parts good = {.placement = start, .slots = slots.get(), .place = place};
    BalancerConfig never = scenario.config;
    never.interval = 0;
    refused(never, good, "interval");
    refused(scenario.config,
            {.placement = Placement::linear(kLayers, kExperts, 5),
             .slots = slots.get(),
             .place = place},
            "is for 5 ranks");
    refused(scenario.config, {.placement = start, .slots = nullptr, .place = place}, "slots");
    refused(scenario.config, {.placement = start, .slots = slots.get(), .place = {}},
            "whom to tell");
    Balancer::Parts nodes = good;
    nodes.topology = Topology{{0, 0, 0}};
    refused(scenario.config, nodes, "the topology is of 3 ranks");
  });
}

}  // namespace
}  // namespace trimtab
