// SPDX-License-Identifier: Apache-2.0
// What balancing takes of the threads that serve: the CPU time of before_step() on rank 0, which
// plans and so has most to do, over whole cycles of gathering, planning and switching. The ranks
// are threads with very small experts. See bench/README.md.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/machine/stopwatch.h"
#include "trimtab/balancer.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace {

using namespace trimtab;

struct Sizes {
  int layers = 58, experts = 256, ranks = 64, slots = 5, parts = 128;
};

std::shared_ptr<const Mlp> small_expert() {
  constexpr int64_t kSize = 32;
  const std::vector<float> values(cells(kSize, kSize), 0.5F);
  const MatrixSource matrix = {reinterpret_cast<const std::byte*>(values.data()), DType::kF32,
                               kSize, kSize, kSize};
  return std::make_shared<const Mlp>(MlpSource{matrix, matrix, matrix}, Activation{},
                                     parse_weight_format("bf16"));
}

// Changes one slot of every second rank in each layer, other ones in each plan.
class EveryLayer final : public Policy {
 public:
  std::string_view name() const override { return "every layer"; }
  Plan rebalance(const Problem& problem) const override {
    const Placement& now = problem.current;
    std::vector<int32_t> logical(now.logical().begin(), now.logical().end());
    const Table<int32_t> slots(logical, now.num_slots());
    for (int layer = 0; layer < now.num_layers(); ++layer) {
      for (int rank = 0; rank + 1 < now.num_ranks(); rank += 2) {
        const int32_t a = now.first_slot(rank), b = now.first_slot(rank + 1);
        std::swap(slots(layer, a), slots(layer, b));
      }
    }
    return {.placement = now.with(std::move(logical), now.version() + 1)};
  }
};

struct Measured {
  std::vector<double> seconds;                  // of each before_step()
  int64_t first_switch = -1, last_switch = -1;  // steps of the first plan
  int64_t switched = 0;
};

Measured serve(const Sizes& sizes, Communicator& comm) {
  const Placement start = default_placement(sizes.layers, sizes.experts,
                                            std::vector<int>(cells(sizes.ranks), sizes.slots));
  const auto expert = small_expert();
  const auto source = [&](int layer, int slot) {
    return ExpertSlots::Expert{expert, start.logical(layer)[start.first_slot(comm.rank()) + slot]};
  };
  ExpertSlots slots(sizes.layers, sizes.slots, 8, source, comm);
  Measured measured;
  BalancerConfig config;
  config.interval = 2 * sizes.parts;
  config.max_episodes = sizes.parts;
  config.plan_above_par = 0;
  config.gate = false;
  // Each job ends before the next step, as it does where steps take milliseconds.
  config.use_async = false;
  Balancer balancer(config,
                    {.placement = start,
                     .policy = std::make_shared<EveryLayer>(),
                     .slots = &slots,
                     .place = [](int, auto, auto) {},
                     .log =
                         [&](const BalanceEvent& event) {
                           if (event.kind != BalanceEvent::Kind::kSwitched) return;
                           if (++measured.switched == 1) measured.first_switch = event.step;
                           if (measured.switched == sizes.layers) measured.last_switch = event.step;
                         }},
                    comm);
  // The statuses travel as a program that has messages of its own sends them along, so that no wait
  // for peers is in the times. Two plans, and no more steps than they can take.
  std::vector<uint64_t> statuses(cells(comm.size()));
  std::vector<int64_t> bytes(statuses.size()), switched(statuses.size());
  for (int64_t step = 0; step < 20 * config.interval && switched[0] < 2 * sizes.layers; ++step) {
    const uint64_t status = balancer.status();
    comm.all_gather_v(std::as_bytes(std::span(&status, 1)),
                      std::as_writable_bytes(std::span(statuses)), bytes)
        .wait_released();
    const bench::Stopwatch own(CLOCK_THREAD_CPUTIME_ID);
    balancer.before_step(Phase::kDecode, statuses);
    measured.seconds.push_back(own.seconds());
    for (int layer = 0; layer < sizes.layers; ++layer) {
      const auto counts = balancer.recorder().counts(layer);
      for (size_t s = 0; s < counts.size(); ++s)
        counts[s] =
            static_cast<int32_t>((step * 7 + comm.rank() + layer + static_cast<int>(s)) % 40);
    }
    balancer.after_step();
    comm.all_gather_v(std::as_bytes(std::span(&measured.switched, 1)),
                      std::as_writable_bytes(std::span(switched)), bytes)
        .wait_released();
  }
  balancer.finish();
  return measured;
}

void run(const Sizes& sizes) {
  Measured rank_0;
  run_ranks(sizes.ranks, [&](Communicator& comm) {
    Measured mine = serve(sizes, comm);
    if (comm.rank() == 0) rank_0 = std::move(mine);
  });
  std::vector<double>& seconds = rank_0.seconds;
  std::ranges::sort(seconds);
  const auto at = [&](double part) {
    return 1e6 * seconds[static_cast<size_t>(part * static_cast<double>(seconds.size() - 1))];
  };
  std::printf(
      "%d layers x %d experts, %d ranks x %d slots, %d parts: before_step() of rank 0 takes %.1f "
      "us "
      "(median), %.1f us (99 %%), %.1f us (most) of its thread, over %zu steps\n",
      sizes.layers, sizes.experts, sizes.ranks, sizes.slots, sizes.parts, at(0.5), at(0.99), at(1),
      seconds.size());
  if (rank_0.last_switch >= 0) {
    std::printf("the %d layers of the first plan were switched in %lld steps\n", sizes.layers,
                static_cast<long long>(rank_0.last_switch - rank_0.first_switch + 1));
  }
}

}  // namespace

// bench_balancer [LAYERS [EXPERTS [RANKS [SLOTS [PARTS]]]]]
int main(int argc, char** argv) {
  try {
    const auto argument = [&](int i, int value) { return i < argc ? std::stoi(argv[i]) : value; };
    const Sizes sizes;
    run({argument(1, sizes.layers), argument(2, sizes.experts), argument(3, sizes.ranks),
         argument(4, sizes.slots), argument(5, sizes.parts)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_balancer: %s\n", error.what());
    return 1;
  }
}
