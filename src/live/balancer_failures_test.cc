// SPDX-License-Identifier: Apache-2.0
// What balancing does when planners, ranks, loads or messages fail or are late: serving goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "live/balancer_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace std::chrono_literals;
using namespace test;

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
    Scenario scenario = restless(4);
    scenario.config.use_async = true;
    scenario.config.plan_deadline_steps = by_steps ? 5 : 0;
    scenario.config.plan_deadline_seconds = by_steps ? 0 : 0.02;
    // Through long before the deadline, under a sanitizer too.
    const std::shared_ptr<const Policy> quick = scenario.policy;
    scenario.policy = std::make_shared<FakePolicy>([go_on, asked, quick](const Problem& problem) {
      if ((*asked)++ == 0) {
        while (!*go_on) std::this_thread::sleep_for(1ms);
      }
      return quick->rebalance(problem);
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
    refused(scenario.config,
            {.placement = start, .slots = slots.get(), .shares_weights = true, .place = place},
            "slots, or ranks that share weights");
    Balancer::Parts nodes = good;
    nodes.topology = Topology{{0, 0, 0}};
    refused(scenario.config, nodes, "the topology is of 3 ranks");
  });
}

}  // namespace
}  // namespace trimtab
