// SPDX-License-Identifier: Apache-2.0
// Plans on recorded or synthetic loads and prints what a plan costs and brings: PAR over the
// window, per step, and on later (held-out) loads, moves, and CPU seconds. See bench/README.md.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine/stopwatch.h"
#include "policy/frame.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/policy.h"
#include "trimtab/recordings.h"

namespace {

using namespace trimtab;

struct Options {
  // NAME (of NAME.train.npy and NAME.test.npy) or one .npy for --replay.
  std::vector<std::string> files;
  std::vector<std::string> policies = {"trim"};
  PolicyOptions policy;
  PlanLimits limits;
  int ranks = 0;
  int slots = 0;
  int max_layers = 0;  // 0: all
  int64_t replay = 0;  // steps a window; 0: train and test files
  int64_t first = 0;   // steps of the first window of a replay; 0: as the others
  uint64_t small = 0;  // seed of random small layers; 0: not wanted
  int repeat = 1;
  bool json = false;
};

Load read_load(const std::string& file, int max_layers) {
  Load load = read_recording(file).load;
  if (max_layers <= 0 || max_layers >= load.num_layers) return load;
  Load kept{.num_steps = load.num_steps,
            .num_layers = max_layers,
            .num_experts = load.num_experts,
            .counts = {}};
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int layer = 0; layer < max_layers; ++layer) {
      const std::span<const int64_t> counts = load.at(step, layer);
      kept.counts.insert(kept.counts.end(), counts.begin(), counts.end());
    }
  }
  return kept;
}

// Mean over layers of the mean PAR per step; worst: of the worst layer.
double step_par(const Placement& placement, const Load& load, double* worst = nullptr) {
  std::vector<double> layers;
  for (int l = 0; l < load.num_layers; ++l) {
    layers.push_back(levelness(rank_loads(placement, load, l), 0).par_step_mean);
  }
  if (worst != nullptr) *worst = *std::max_element(layers.begin(), layers.end());
  return mean_of(layers);
}

struct Figures {
  double window = 0, window_worst = 0, train = 0, test = 0, test_worst = 0, floor = 0, bound = 0,
         moves = 0, receive = 0, seconds = 0;
  long long duplicates = 0;
};

Figures figures_of(const Plan& plan, const Load& test) {
  Figures f;
  const auto layers = static_cast<double>(plan.layers.size());
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    f.window += plan.layers[l].par_after / layers;
    f.window_worst = std::max(f.window_worst, plan.layers[l].par_after);
    f.train += plan.layers[l].par_step_after / layers;
    f.bound += plan.layers[l].bound_equal / layers;
    f.receive += static_cast<double>(plan.receive_peak[l]) / layers;
    f.duplicates += plan.duplicates[l];
  }
  f.moves = static_cast<double>(plan.moves.size()) / layers;
  f.test = step_par(plan.placement, test, &f.test_worst);
  for (int l = 0; l < test.num_layers; ++l)
    f.floor += noise_floor(test, l, plan.placement.num_ranks()) / layers;
  return f;
}

void print(const Options& options, const std::string& name, const std::string& policy,
           const Figures& f) {
  if (options.json) {
    std::printf(
        "{\"workload\": \"%s\", \"policy\": \"%s\", \"preset\": \"%s\", \"par_window\": %.6f, "
        "\"par_window_worst\": %.6f, \"par_bound\": %.6f, \"par_step\": %.6f, \"par_next\": %.6f, "
        "\"par_next_worst\": %.6f, \"floor_next\": %.6f, \"moves_per_layer\": %.3f, "
        "\"receive_peak\": %.3f, "
        "\"duplicates\": %lld, "
        "\"cpu_seconds\": %.6f}\n",
        name.c_str(), policy.c_str(), options.policy.preset.c_str(), f.window, f.window_worst,
        f.bound, f.train, f.test, f.test_worst, f.floor, f.moves, f.receive, f.duplicates,
        f.seconds);
    return;
  }
  std::printf(
      "%-22s %-9s window %.5f (worst %.5f, bound %.5f) step %.4f next %.4f (worst %.4f) moves "
      "%6.1f "
      "receive %4.1f dup %lld cpu %.4f s\n",
      name.c_str(), policy.c_str(), f.window, f.window_worst, f.bound, f.train, f.test,
      f.test_worst, f.moves, f.receive, f.duplicates, f.seconds);
}

// NAME_RxS gives ranks and slots where the options do not.
void sizes_of(const Options& options, const std::string& name, int& ranks, int& slots) {
  ranks = options.ranks;
  slots = options.slots;
  if (ranks > 0 && slots > 0) return;
  const size_t mark = name.rfind('_');
  const size_t times = name.find('x', mark == std::string::npos ? 0 : mark);
  if (mark == std::string::npos || times == std::string::npos ||
      std::from_chars(name.data() + mark + 1, name.data() + times, ranks).ec != std::errc() ||
      std::from_chars(name.data() + times + 1, name.data() + name.size(), slots).ec !=
          std::errc()) {
    throw InvalidArgument(name + ": give --ranks and --slots");
  }
}

void run_train_test(const Options& options, const std::string& name) {
  int ranks = 0;
  int slots = 0;
  sizes_of(options, name, ranks, slots);
  const Load train = read_load(name + ".train.npy", options.max_layers);
  const Load test = read_load(name + ".test.npy", options.max_layers);
  const Placement current =
      default_placement(train.num_layers, train.num_experts, std::vector<int>(ranks, slots));
  for (const auto& policy : make_policies(options.policies, options.policy)) {
    const std::string policy_name(policy->name());
    std::vector<double> seconds;
    Figures figures;
    for (int i = 0; i < options.repeat; ++i) {
      const bench::Stopwatch watch(CLOCK_PROCESS_CPUTIME_ID);
      const Plan plan =
          policy->rebalance({.load = train, .current = current, .limits = options.limits});
      seconds.push_back(watch.seconds());
      figures = figures_of(plan, test);
    }
    std::sort(seconds.begin(), seconds.end());
    figures.seconds = seconds[seconds.size() / 2];
    print(options, name.substr(name.rfind('/') + 1), policy_name, figures);
  }
}

// Plans on every window and measures on the next, carrying placement and history. moves: per layer
// and replan after the first.
void run_replay(const Options& options, const std::string& file) {
  const Load load = read_load(file, options.max_layers);
  const int64_t first = options.first > 0 ? options.first : options.replay;
  const auto end_of = [&](int64_t window) { return first + window * options.replay; };
  const int64_t windows = (load.num_steps - first) / options.replay + 1;
  for (const auto& policy : make_policies(options.policies, options.policy)) {
    const std::string policy_name(policy->name());
    Placement placement = default_placement(load.num_layers, load.num_experts,
                                            std::vector<int>(options.ranks, options.slots));
    History history;
    double par = 0, worst = 0, seconds = 0, first_moves = 0, later_moves = 0, own = 0;
    const auto layers = static_cast<double>(load.num_layers);
    for (int64_t w = 0; w + 1 < windows; ++w) {
      const Load window = steps_of(load, {w == 0 ? 0 : end_of(w - 1), end_of(w)});
      const Load next = steps_of(load, {end_of(w), end_of(w + 1)});
      const bench::Stopwatch watch(CLOCK_PROCESS_CPUTIME_ID);
      Plan plan = policy->rebalance({.load = window,
                                     .current = placement,
                                     .limits = options.limits,
                                     .history = w > 0 ? &history : nullptr});
      seconds += watch.seconds();
      (w == 0 ? first_moves : later_moves) += static_cast<double>(plan.moves.size()) / layers;
      const double next_par = step_par(plan.placement, next);
      own += step_par(plan.placement, window);
      par += next_par;
      worst = std::max(worst, next_par);
      placement = std::move(plan.placement);
      history = std::move(plan.history);
    }
    const auto replans = static_cast<double>(windows - 1);
    std::printf(options.json ? "{\"policy\": \"%s\", \"par_next_mean\": %.6f, \"par_next_worst\": "
                               "%.6f, \"par_own\": %.6f, "
                               "\"moves_per_layer_per_replan\": %.3f, \"first_plan_moves\": %.3f, "
                               "\"cpu_seconds_per_replan\": %.6f}\n"
                             : "%-9s next %.4f (worst window %.4f) own %.4f moves/replan %6.2f "
                               "(first %.1f) cpu/replan %.4f s\n",
                policy_name.c_str(), par / replans, worst, own / replans,
                windows > 2 ? later_moves / (replans - 1) : 0.0, first_moves, seconds / replans);
  }
}

// Random small layers against their proved optimum: 24 for each shape, log-normal, exponential and
// Zipf-like.
void run_small(const Options& options) {
  struct Shape {
    int experts, ranks, slots;
  };
  for (const Shape shape : {Shape{8, 4, 3}, Shape{8, 8, 2}, Shape{12, 6, 3}}) {
    std::mt19937_64 random(options.small);
    const auto unit = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
    const Placement current =
        default_placement(1, shape.experts, std::vector<int>(shape.ranks, shape.slots));
    const auto policies = make_policies(options.policies, options.policy);
    std::vector<double> gap(options.policies.size(), 0), worst(gap), seconds(gap), best(gap);
    double optimum_mean = 0, optimum_seconds = 0;
    constexpr int kInstances = 24;
    for (int i = 0; i < kInstances; ++i) {
      Load load{.num_steps = 1, .num_layers = 1, .num_experts = shape.experts, .counts = {}};
      for (int e = 0; e < shape.experts; ++e) {
        const double normal = std::sqrt(-2 * std::log(unit())) * std::cos(6.283185307 * unit());
        const double value = i % 3 == 0   ? std::exp(normal)
                             : i % 3 == 1 ? -std::log(unit())
                                          : 1 / std::pow(e + 1, 1.0);
        load.counts.push_back(
            static_cast<int64_t>(value * (i % 3 == 2 ? 800 + 400 * unit() : 1000)) + 1);
      }
      const bench::Stopwatch optimum_watch(CLOCK_PROCESS_CPUTIME_ID);
      const double optimum =
          make_policy("optimal")->rebalance({.load = load, .current = current}).layers[0].par_after;
      optimum_seconds += optimum_watch.seconds();
      optimum_mean += optimum / kInstances;
      for (size_t p = 0; p < options.policies.size(); ++p) {
        const bench::Stopwatch watch(CLOCK_PROCESS_CPUTIME_ID);
        const Plan plan = policies[p]->rebalance({.load = load, .current = current});
        seconds[p] += watch.seconds();
        const double over = plan.layers[0].par_after / optimum - 1;
        gap[p] += over / kInstances;
        worst[p] = std::max(worst[p], over);
        best[p] += over < 1e-9 ? 1 : 0;
      }
    }
    std::printf("%d experts, %dx%d: optimum %.4f (%.1f ms each)\n", shape.experts, shape.ranks,
                shape.slots, optimum_mean, 1e3 * optimum_seconds / kInstances);
    for (size_t p = 0; p < options.policies.size(); ++p) {
      std::printf("  %-9s gap mean %.3f %% max %.3f %%, optimal in %.0f of %d, %.2f ms each\n",
                  options.policies[p].c_str(), 100 * gap[p], 100 * worst[p], best[p], kInstances,
                  1e3 * seconds[p] / kInstances);
    }
  }
}

[[noreturn]] void usage(const char* problem) {
  std::fprintf(stderr,
               "%s\nusage: bench_planning [options] NAME...   (NAME.train.npy, NAME.test.npy; "
               "NAME_RxS gives the sizes)\n"
               "       bench_planning --small SEED [options]\n"
               "       bench_planning --replay STEPS [--first STEPS] --ranks R --slots S [options] "
               "FILE.npy...\n"
               "options: --policies a,b --preset fast|balanced|deep --move-price P --max-moves M "
               "--max-receive N\n"
               "         --budget SECONDS --ranks R --slots S --layers N --repeat N --json\n",
               problem);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) usage("a value is missing");
      return argv[++i];
    };
    if (arg == "--policies") {
      options.policies.clear();
      const std::string list = value() + ",";
      for (size_t at = 0; at < list.size(); at = list.find(',', at) + 1) {
        options.policies.push_back(list.substr(at, list.find(',', at) - at));
      }
    } else if (arg == "--preset") {
      options.policy.preset = value();
    } else if (arg == "--move-price") {
      options.policy.move_price = std::stod(value());
    } else if (arg == "--budget") {
      options.policy.time_budget_s = std::stod(value());
    } else if (arg == "--max-moves") {
      options.limits.max_moves_per_layer = std::stoll(value());
    } else if (arg == "--max-receive") {
      options.limits.max_receive_per_rank = std::stoll(value());
    } else if (arg == "--ranks") {
      options.ranks = std::stoi(value());
    } else if (arg == "--slots") {
      options.slots = std::stoi(value());
    } else if (arg == "--layers") {
      options.max_layers = std::stoi(value());
    } else if (arg == "--replay") {
      options.replay = std::stoll(value());
    } else if (arg == "--first") {
      options.first = std::stoll(value());
    } else if (arg == "--small") {
      options.small = std::stoull(value());
    } else if (arg == "--repeat") {
      options.repeat = std::max(1, std::stoi(value()));
    } else if (arg == "--json") {
      options.json = true;
    } else if (arg.starts_with("--")) {
      usage("unknown option");
    } else {
      options.files.emplace_back(arg);
    }
  }
  if (options.files.empty() && options.small == 0) usage("no workload");
  if (options.replay > 0 && (options.ranks == 0 || options.slots == 0))
    usage("--replay needs --ranks and --slots");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.small > 0) run_small(options);
    for (const std::string& file : options.files) {
      options.replay > 0 ? run_replay(options, file) : run_train_test(options, file);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_planning: %s\n", error.what());
    return 1;
  }
}
