// SPDX-License-Identifier: Apache-2.0
// What balancing brings, counts and keeps as it is, while nothing goes wrong.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "base/test_effort.h"
#include "live/balancer_testing.h"
#include "split/split_loads.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;
using namespace test;

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

// In each phase 100 windows of level load, without the second gate. A decode window has 32 rows for
// each rank, of which chance alone makes a PAR far above 1.02.
TEST(BalancerTest, LevelLoadMovesNothingInAHundredWindowsOfAPhase) {
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    SCOPED_TRACE(phase == Phase::kPrefill ? "prefill" : "decode");
    Scenario scenario;
    scenario.config.interval = 8;
    scenario.config.phase = phase;
    scenario.phase_of = [](int64_t step) {
      return step % 2 == 0 ? Phase::kPrefill : Phase::kDecode;
    };
    scenario.load = [](int64_t step, int layer) {
      // On every rank the same.
      std::mt19937 random(static_cast<unsigned>(step * kLayers + layer));
      std::vector<int64_t> load(kExperts);
      for (int token = 0; token < (step % 2 == 0 ? 400 : 16); ++token) ++load[random() % kExperts];
      return load;
    };
    const int ranks = rank_counts({4, 2, 1}).front();
    run_group(ranks, [&](Communicator& comm) {
      Server server(scenario, comm, Placement::linear(kLayers, kExperts, ranks));
      std::vector<int64_t> counted;
      int windows = 0;
      for (int step = 0; step < 3000 && windows < 100; ++step) {
        server.step();
        const std::vector<int64_t>& now = server.balancer().metrics().rank_tokens;
        if (comm.rank() == 0 && now != counted) ++windows;
        counted = now;
        const int32_t all = windows;
        std::vector<int32_t> of_ranks(cells(comm.size()));
        std::vector<int64_t> bytes(of_ranks.size());
        comm.all_gather_v(std::as_bytes(std::span(&all, 1)),
                          std::as_writable_bytes(std::span(of_ranks)), bytes)
            .wait_released();
        windows = of_ranks[0];
      }
      EXPECT_EQ(windows, 100);
      EXPECT_EQ(server.balancer().metrics().moves, 0);
      EXPECT_EQ(server.count(Kind::kSwitched), 0);
    });
  }
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

// A window has steps of its phase alone, so it takes as long as these do to come, and a plan is
// never made on a single prompt; where none comes, nothing is planned.
TEST(BalancerTest, AWindowOfARarePhaseTakesLong) {
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
          // Steps 6, 13, 20 and 27 are the first window.
          for (const BalanceEvent& event : server.logged()) EXPECT_GT(event.step, 27);
        } else {
          EXPECT_EQ(placement.version(), start.version());
        }
        expect_same_placement(comm, placement);
      });
    }
  }
}

// The mean over the layers when tokens are split freely over replicas.
double split_par_of(const Placement& placement, const LoadOf& load) {
  double sum = 0;
  for (int layer = 0; layer < kLayers; ++layer)
    sum += split_pars(placement, layer, Load{1, 1, kExperts, load(0, layer)}, 0)[0];
  return sum / kLayers;
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
        EXPECT_GT(split_par_of(start, levelled), 1.2);
        EXPECT_LT(split_par_of(server.balancer().placement(), levelled), kLevel);
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

// Each of 3 layers has 2 hot experts on one of 2 ranks. In rows one rank has nearly all; a cost of
// reading weights alone makes them level, since each rank has as many experts that get rows.
TEST(BalancerTest, MetricsAreInRowsAndInTime) {
  TRIMTAB_NEEDS_RANKS(2);
  Scenario scenario;
  scenario.config.plan_above_par = 1000;
  const Placement start = Placement::linear(kLayers, kExperts, 2);
  const double in_rows = par_of(start, skewed);
  for (const int64_t of_many : {int64_t{0}, int64_t{1000}, int64_t{300'000}}) {
    scenario.cost =
        of_many == 0
            ? nullptr
            : std::make_shared<const CostModel>(std::vector<CostPoint>{{1, 1000}, {300, of_many}});
    run_group(2, [&](Communicator& comm) {
      Server server(scenario, comm, start);
      server.steps(10);
      if (comm.rank() != 0) return;
      const BalanceMetrics& metrics = server.balancer().metrics();
      EXPECT_EQ(metrics.split, "round_robin");
      EXPECT_EQ(metrics.policy, "trim");
      EXPECT_NEAR(metrics.par_rows, in_rows, 1e-9);
      ASSERT_EQ(metrics.par_time.has_value(), of_many > 0);
      if (of_many == 1000) {
        EXPECT_EQ(metrics.par_time, 1);
      }
      if (of_many == 300'000) {
        EXPECT_NEAR(*metrics.par_time, in_rows, 1e-9);
      }
    });
  }
}

// Layer 2 is a draft's, which runs in every third step only. Every token picks the last expert of
// each layer, a shared one that is placed as routed ones are.
TEST(BalancerTest, DraftLayersAndPlacedSharedExpertsTakePart) {
  TRIMTAB_NEEDS_RANKS(4);
  Scenario scenario;
  scenario.config.interval = 6;
  scenario.load = [](int64_t step, int layer) {
    if (layer == 2 && step % 3 != 0) return std::vector<int64_t>(kExperts);
    std::vector<int64_t> load(kExperts, 20);
    load[cells(layer)] = 100;
    load[kExperts - 1] = 300;
    return load;
  };
  for (const int ranks : {2, 4}) {
    run_group(ranks, [&](Communicator& comm) {
      const Placement start = start_placement(ranks);
      Server server(scenario, comm, start);
      server.steps(60);
      const Placement& now = server.balancer().placement();
      EXPECT_LT(par_of(now, scenario.load), kLevel * least_par(start, scenario.load));
      for (int layer = 0; layer < kLayers; ++layer)
        EXPECT_GE(std::ranges::count(now.logical(layer), kExperts - 1), 2) << layer;
      server.expect_right();
    });
  }
}

// Ranks that read the same weights have no slots: what they are told is the tables alone, of all
// layers that a plan changes at once, and no byte moves.
TEST(BalancerTest, RanksThatShareWeightsCopyNothing) {
  TRIMTAB_NEEDS_RANKS(2);
  Scenario scenario;
  scenario.shares_weights = true;
  run_group(2, [&](Communicator& comm) {
    const Placement start = start_placement(2);
    Server server(scenario, comm, start);
    server.steps(60);
    const Balancer& balancer = server.balancer();
    EXPECT_LT(par_of(balancer.placement(), skewed), kLevel * least_par(start, skewed));
    EXPECT_GE(std::ssize(server.placed()), 1);
    EXPECT_EQ(std::ssize(server.placed()), balancer.layers_switched());
    EXPECT_EQ(balancer.metrics().moved_bytes, 0);
    EXPECT_GT(balancer.metrics().moves, 0);
    expect_same_placement(comm, balancer.placement());
  });
}

// Rank 1 takes twice as long from step 20 to 60. All ranks hear of it at the same step.
TEST(BalancerTest, ASlowRankIsMeasuredAndGetsLess) {
  TRIMTAB_NEEDS_RANKS(2);
  Scenario scenario;
  scenario.config.split = SplitRule::kTime;
  scenario.load = level;
  scenario.cost = std::make_shared<const CostModel>(
      std::vector<CostPoint>{{1, 1'000'000}, {1000, 100'000'000}});
  scenario.slowness = [](int rank, int64_t step) {
    return (rank == 1 && step >= 20 && step < 60 ? 2 : 1) *
           (1 + 0.02 * static_cast<double>(step % 3));
  };
  run_group(2, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(2));
    server.steps(20);
    EXPECT_TRUE(server.costs().empty());
    std::vector<int32_t> heard;
    for (int step = 20; step < 110; ++step) {
      server.step();
      heard.push_back(static_cast<int32_t>(server.costs().size()));
    }
    expect_agreement(comm, heard);
    ASSERT_EQ(server.costs().size(), 2U);
    const CostModel& slow = *server.costs()[0];
    ASSERT_TRUE(slow.has_speeds());
    EXPECT_EQ(slow.speeds()[0], 1000);
    EXPECT_NEAR(slow.speeds()[1], 500, 25);
    EXPECT_FALSE(server.costs()[1]->has_speeds());
    EXPECT_EQ(server.balancer().cost(), server.costs()[1]);
    EXPECT_EQ(server.balancer().cost()->fingerprint(), scenario.cost->fingerprint());
    EXPECT_EQ(server.count(Kind::kSpeeds), 2);
    EXPECT_EQ(server.balancer().metrics().rank_speeds, (std::vector<int32_t>{1000, 1000}));
    server.expect_right();
  });
}

TEST(BalancerTest, SpeedsAreMeasuredWhereAskedForAlone) {
  TRIMTAB_NEEDS_RANKS(2);
  Scenario scenario;
  scenario.config.split = SplitRule::kTime;
  scenario.config.measure_speeds = false;
  scenario.load = level;
  const std::vector<CostPoint> points = {{1, 1'000'000}, {1000, 100'000'000}};
  scenario.cost = std::make_shared<const CostModel>(points);
  scenario.slowness = [](int rank, int64_t) { return rank + 1; };
  const auto hear = [&] {
    run_group(2, [&](Communicator& comm) {
      Server server(scenario, comm, start_placement(2));
      server.steps(60);
      EXPECT_TRUE(server.costs().empty());
    });
  };
  hear();
  // Nor where somebody knows them, or where times are rows.
  scenario.config.measure_speeds = true;
  scenario.cost = std::make_shared<const CostModel>(points, std::vector<int32_t>{1000, 900});
  hear();
  scenario.cost = std::make_shared<const CostModel>(CostModel::of_rows());
  hear();
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

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

TEST(BalancerTest, MemoryIsFlatOverManyReplans) {
  const int64_t replans = heavy_tests() ? 10000 : 300;
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

}  // namespace
}  // namespace trimtab
