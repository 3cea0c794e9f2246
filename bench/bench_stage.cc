// SPDX-License-Identifier: Apache-2.0
// What balancing brings the experts of one MoE layer, on ranks that are threads with a core each:
// experts placed and tokens shared out by time, beside experts in order, step by step in turns. And
// with --slow, what is left when one rank has half of a core. See bench/README.md.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/experts/expert_set.h"
#include "bench/experts/model_shape.h"
#include "bench/experts/paired.h"
#include "bench/experts/routing.h"
#include "bench/experts/weight_dtype.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/balancer.h"
#include "trimtab/dispatch_choice.h"
#include "trimtab/error.h"
#include "trimtab/layer.h"
#include "trimtab/measure_cost.h"
#include "trimtab/policy.h"
#include "trimtab/table.h"

namespace {

using namespace trimtab;
using namespace trimtab::bench;

struct Options {
  ModelShape model = parse_model("qwen3-30b");
  const WeightDType* dtype = &find_weight_dtype("bf16");
  RoutingKind routing = RoutingKind::kUneven;
  std::vector<int64_t> tokens = {1, 4, 16, 64, 512};  // of each rank
  int ranks = 2;
  int redundant = 16;  // slots more on each rank, in the balanced layer
  int steps = 24;      // planned on; as many are measured
  int pairs = 15;
  bool slow = false;
  int core = 0;  // rank r is on core + r
};

// The thread runs on this core alone.
void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) != 0)
    throw Error("core " + std::to_string(core) + " is not there: --core, --ranks");
}

// Uses up half of a core while it lives: the scheduler shares the core out evenly.
class Hog {
 public:
  explicit Hog(int core)
      : thread_([this, core] {
          pin(core);
          while (!ended_.load(std::memory_order_relaxed)) {
          }
        }) {}
  ~Hog() {
    ended_ = true;
    thread_.join();
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// One rank's part of every step.
std::vector<Picks> picks_of(const Options& options, int64_t tokens, int rank) {
  std::vector<Picks> picks;
  for (int step = 0; step < 2 * options.steps; ++step) {
    const auto seed = static_cast<uint64_t>(step * options.ranks + rank);
    picks.push_back(
        route(options.routing, tokens, options.model.experts, options.model.top_k, seed));
  }
  return picks;
}

// The first half of the steps, which plans are made from.
Load load_of(const Options& options, int64_t tokens) {
  Load load{options.steps, 1, options.model.experts, {}};
  load.counts.resize(cells(options.steps, options.model.experts));
  for (int rank = 0; rank < options.ranks; ++rank) {
    const std::vector<Picks> picks = picks_of(options, tokens, rank);
    for (int step = 0; step < options.steps; ++step) {
      for (const int32_t id : picks[cells(step)].ids)
        ++load.counts[cells(step, options.model.experts) + cells(id)];
    }
  }
  return load;
}

// One rank's layer, and the memory of its calls.
class RankLayer {
 public:
  RankLayer(const Options& options, int64_t tokens, const Placement& placement,
            std::shared_ptr<const Experts> experts, SplitRule split,
            std::shared_ptr<const CostModel> cost, Communicator& comm)
      : tokens_(tokens),
        hidden_(options.model.hidden),
        layer_({.replicas = std::make_shared<const SplitTable>(placement, 0),
                .split = split,
                .cost = std::move(cost),
                .dispatcher = dispatcher_of(options, tokens, placement, split, *experts, comm),
                .experts = experts}),
        groups_(layer_.dispatcher().make_groups(comm)),
        pointers_(pointers_to(groups_)),
        workspace_(comm.allocate(layer_.workspace_bytes(tokens, {.routed = true}))),
        x_(cells(tokens, hidden_)),
        out_(x_.size()),
        lane_{comm, workspace_, team_, pointers_} {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i * 7 % 31) * 0.05F - 0.75F;
  }

  // Nanoseconds of this rank's experts. counts: as ForwardOptions::local_counts.
  int64_t run(const Picks& picks, std::span<int32_t> counts = {}) {
    int64_t nanoseconds = 0;
    const ConstRows x(x_.data(), tokens_, hidden_);
    const Rows out(out_.data(), tokens_, hidden_);
    trimtab::run(layer_.forward({x, picks.ids, picks.weights}, out, lane_,
                                {.local_counts = counts, .expert_nanoseconds = &nanoseconds}));
    return nanoseconds;
  }
  MoeLayer& layer() { return layer_; }

 private:
  static std::shared_ptr<const Dispatcher> dispatcher_of(const Options& options, int64_t tokens,
                                                         const Placement& placement,
                                                         SplitRule split, const Experts& experts,
                                                         Communicator& comm) {
    const bool shares_out = split != SplitRule::kStatic;
    const DispatchRule rule = choose_dispatcher({.ranks = comm.size(),
                                                 .format = experts.format(),
                                                 .exact_order = true,
                                                 .shares_out = shares_out});
    return make_dispatcher(rule.dispatcher,
                           {.max_tokens = tokens,
                            .hidden = static_cast<int>(options.model.hidden),
                            .top_k = options.model.top_k,
                            .dtype = experts.dtype(),
                            .first_slots = placement.first_slots(),
                            .exact_order = true,
                            .num_experts = shares_out ? options.model.experts : 0},
                           comm.rank());
  }

  int64_t tokens_, hidden_;
  MoeLayer layer_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  std::vector<Communicator*> pointers_;
  Workspace workspace_;
  Team team_{1};
  std::vector<float> x_, out_;  // [tokens, hidden]
  Lane lane_;
};

Format format_of(const Options& options) {
  return dispatcher_kind(
             choose_dispatcher({.ranks = options.ranks, .exact_order = true, .shares_out = true})
                 .dispatcher)
      .format;
}

std::shared_ptr<const Experts> experts_of(const Options& options, const ExpertSet& set,
                                          const Placement& placement, int rank) {
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (int s = placement.first_slot(rank); s < placement.first_slot(rank + 1); ++s)
    slots.push_back(set.mlp(placement.logical(0)[cells(s)]));
  return make_grouped_experts(std::move(slots), options.model.hidden, options.dtype->weights,
                              format_of(options));
}

// With replicas, before anything is known.
Placement first_placement(const Options& options) {
  const int slots = (options.model.experts + options.ranks - 1) / options.ranks + options.redundant;
  return default_placement(1, options.model.experts, std::vector<int>(cells(options.ranks), slots));
}

std::shared_ptr<const CostModel> measured_cost(const Experts& experts, Communicator& comm) {
  std::optional<CostModel> mine;
  if (comm.rank() == 0) {
    Team team(1);
    mine = measure_cost(experts, team, {.seconds = 0.5, .most_rows = 1024});
  }
  return std::make_shared<const CostModel>(broadcast_cost(comm, mine ? &*mine : nullptr));
}

// The greatest of what all ranks have.
double greatest(Communicator& comm, double mine) {
  std::vector<double> all(cells(comm.size()));
  std::vector<int64_t> bytes(all.size());
  comm.all_gather_v(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                    bytes)
      .wait_released();
  return std::ranges::max(all);
}

// What the experts of the busiest rank take in all measured steps by the cost model. The ranks must
// do with the rows that they get there what one rank did alone when it was measured.
double foretold_seconds(const Options& options, std::span<const Picks> picks, RankLayer& layer,
                        int num_slots, const CostModel& cost, Communicator& comm) {
  double sum = 0;
  for (int step = options.steps; step < 2 * options.steps; ++step) {
    std::vector<int32_t> counts(cells(num_slots));
    layer.run(picks[cells(step)], counts);
    double mine = 0;
    for (const int32_t rows : counts) mine += 1e-12 * static_cast<double>(cost.time(rows));
    sum += greatest(comm, mine);
  }
  return sum;
}

// Seconds of all measured steps: of the rank whose experts take longest in each, and of the layer.
struct Seconds {
  double experts = 0, layer = 0;
};

Seconds run_steps(const Options& options, std::span<const Picks> picks, RankLayer& layer,
                  Communicator& comm) {
  Seconds sum;
  for (int step = options.steps; step < 2 * options.steps; ++step) {
    comm.barrier();
    const Stopwatch wall(CLOCK_MONOTONIC);
    const int64_t own = layer.run(picks[cells(step)]);
    sum.layer += greatest(comm, wall.seconds());
    sum.experts += greatest(comm, 1e-9 * static_cast<double>(own));
  }
  return sum;
}

void print_spread(const char* what, const Spread& spread, int digits) {
  std::printf(", \"%s\": %.*f, \"%s_low\": %.*f, \"%s_high\": %.*f", what, digits, spread.median,
              what, digits, spread.low, what, digits, spread.high);
}

// One JSON object a line: times of the balanced layer over those of the other.
void compare(const Options& options, const ExpertSet& set, int64_t tokens) {
  const Load load = load_of(options, tokens);
  const Placement linear = Placement::linear(1, options.model.experts, options.ranks);
  std::vector<double> experts, layer, milliseconds;
  double foretold = 0;
  run_ranks(options.ranks, [&](Communicator& comm) {
    pin(options.core + comm.rank());
    const std::vector<Picks> picks = picks_of(options, tokens, comm.rank());
    const auto cost = measured_cost(*experts_of(options, set, linear, comm.rank()), comm);
    const Placement planned = make_policy("trim")
                                  ->rebalance({.load = load,
                                               .current = first_placement(options),
                                               .split = SplitRule::kTime,
                                               .cost = cost.get()})
                                  .placement;
    RankLayer before(options, tokens, linear, experts_of(options, set, linear, comm.rank()),
                     SplitRule::kStatic, nullptr, comm);
    RankLayer after(options, tokens, planned, experts_of(options, set, planned, comm.rank()),
                    SplitRule::kTime, cost, comm);
    const double foretold_before =
        foretold_seconds(options, picks, before, linear.slots_of_rank(comm.rank()), *cost, comm);
    const double foretold_after =
        foretold_seconds(options, picks, after, planned.slots_of_rank(comm.rank()), *cost, comm);
    if (comm.rank() == 0) foretold = foretold_after / foretold_before;
    for (int pair = 0; pair < options.pairs; ++pair) {
      Seconds of_before, of_after;
      if (pair % 2 == 0) of_before = run_steps(options, picks, before, comm);
      of_after = run_steps(options, picks, after, comm);
      if (pair % 2 != 0) of_before = run_steps(options, picks, before, comm);
      if (comm.rank() != 0) continue;
      experts.push_back(of_after.experts / of_before.experts);
      layer.push_back(of_after.layer / of_before.layer);
      milliseconds.push_back(1e3 * of_before.experts / options.steps);
    }
  });
  std::printf("{\"what\": \"balanced\", \"weights\": \"%s\", \"tokens\": %lld",
              std::string(options.dtype->name).c_str(), static_cast<long long>(tokens));
  std::printf(", \"foretold\": %.3f", foretold);
  print_spread("experts", spread_of(experts), 3);
  print_spread("layer", spread_of(layer), 3);
  print_spread("linear_ms", spread_of(milliseconds), 3);
  std::printf("}\n");
  std::fflush(stdout);
}

// Milliseconds of a step at full speed, and with the hog, at the end of as many windows.
struct SlowRank {
  double full = 0, slow = 0, speed = 1;
};

SlowRank serve(const Options& options, const ExpertSet& set, int64_t tokens, bool measures) {
  constexpr int kWindows = 10;
  SlowRank result;
  run_ranks(options.ranks, [&](Communicator& comm) {
    pin(options.core + comm.rank());
    const std::vector<Picks> picks = picks_of(options, tokens, comm.rank());
    const Placement start = first_placement(options);
    const auto cost = measured_cost(*experts_of(options, set, start, comm.rank()), comm);
    ExpertSlots slots(
        1, start.slots_of_rank(comm.rank()), 8,
        [&](int, int slot) {
          const int32_t held = start.logical(0)[cells(start.first_slot(comm.rank()) + slot)];
          return ExpertSlots::Expert{set.mlp(held), held};
        },
        comm);
    RankLayer layer(options, tokens, start, slots.experts(0, format_of(options)), SplitRule::kTime,
                    cost, comm);
    BalancerConfig config;
    config.interval = options.steps;
    config.max_episodes = options.steps;
    config.split = SplitRule::kTime;
    config.measure_speeds = measures;
    Balancer balancer(
        config,
        {.placement = start,
         .cost = cost,
         .slots = &slots,
         .format = format_of(options),
         .place =
             [&](int, std::shared_ptr<const Experts> experts,
                 std::shared_ptr<const SplitTable> replicas) {
               layer.layer().replace(std::move(experts), std::move(replicas));
             },
         .replace_cost =
             [&](const std::shared_ptr<const CostModel>& now) { layer.layer().replace_cost(now); }},
        comm);
    const auto windows = [&] {
      double last = 0;
      for (int step = 0; step < kWindows * options.steps; ++step) {
        balancer.before_step(Phase::kDecode);
        comm.barrier();
        const Stopwatch wall(CLOCK_MONOTONIC);
        LoadRecorder& recorder = balancer.recorder();
        recorder.expert_nanoseconds() +=
            layer.run(picks[cells(step % (2 * options.steps))], recorder.counts(0));
        const double seconds = greatest(comm, wall.seconds());
        balancer.after_step();
        if (step >= (kWindows - 4) * options.steps) last += seconds / (4 * options.steps);
      }
      return 1e3 * last;
    };
    const double full = windows();
    std::optional<Hog> hog;
    if (comm.rank() == options.ranks - 1) hog.emplace(options.core + comm.rank());
    const double slow = windows();
    hog.reset();
    balancer.finish();
    if (comm.rank() != 0) return;
    result = {.full = full, .slow = slow};
    const std::vector<int32_t>& speeds = balancer.metrics().rank_speeds;
    if (!speeds.empty()) result.speed = speeds.back() / 1000.0;
  });
  return result;
}

// Of what ranks could do together at half the speed of the last one, how much they do.
void compare_slow(const Options& options, const ExpertSet& set, int64_t tokens) {
  std::vector<double> shares[2], speeds;
  for (int pair = 0; pair < options.pairs; ++pair) {
    for (const int measures : pair % 2 == 0 ? std::vector{0, 1} : std::vector{1, 0}) {
      const SlowRank one = serve(options, set, tokens, measures == 1);
      shares[measures].push_back(one.full / one.slow * options.ranks / (options.ranks - 0.5));
      if (measures == 1) speeds.push_back(one.speed);
    }
  }
  std::printf("{\"what\": \"slow rank\", \"weights\": \"%s\", \"tokens\": %lld",
              std::string(options.dtype->name).c_str(), static_cast<long long>(tokens));
  print_spread("of_speeds", spread_of(shares[1]), 3);
  print_spread("of_speeds_unmeasured", spread_of(shares[0]), 3);
  print_spread("speed", spread_of(speeds), 3);
  std::printf("}\n");
  std::fflush(stdout);
}

[[noreturn]] void usage(const char* problem) {
  std::fprintf(stderr,
               "%s\nusage: bench_stage [--model NAME] [--dtype NAME] [--routing NAME] [--tokens "
               "N,N,...] [--ranks N] [--redundant N] [--steps N] [--pairs N] [--core N] [--slow "
               "1]\n",
               problem);
  std::exit(2);
}

int number(std::string_view text) {
  int value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 0)
    usage("a number is missing");
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view arg = argv[i];
    const std::string text = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--model") {
      options.model = parse_model(text);
    } else if (arg == "--dtype") {
      options.dtype = &find_weight_dtype(text);
    } else if (arg == "--routing") {
      options.routing = find_routing(text);
    } else if (arg == "--tokens") {
      options.tokens.clear();
      for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        options.tokens.push_back(number(std::string_view(text).substr(at, end - at)));
        at = end + 1;
      }
    } else if (arg == "--ranks") {
      options.ranks = number(text);
    } else if (arg == "--redundant") {
      options.redundant = number(text);
    } else if (arg == "--steps") {
      options.steps = number(text);
    } else if (arg == "--pairs") {
      options.pairs = number(text);
    } else if (arg == "--core") {
      options.core = number(text);
    } else if (arg == "--slow") {
      options.slow = number(text) != 0;
    } else {
      usage("unknown option");
    }
  }
  if (options.ranks < 2 || options.steps < 1 || options.pairs < 1 ||
      std::ranges::min(options.tokens) < 1)
    usage("impossible sizes");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    Team team(2);
    const ExpertSet set(*options.dtype, options.model.hidden, options.model.intermediate,
                        options.model.experts, team);
    for (const int64_t tokens : options.tokens)
      options.slow ? compare_slow(options, set, tokens) : compare(options, set, tokens);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_stage: %s\n", error.what());
    return 1;
  }
  return 0;
}
