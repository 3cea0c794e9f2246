// SPDX-License-Identifier: Apache-2.0
// What a call of the layer does beside its experts and its exchange, on one thread and on several:
// it routes, rounds rows to bf16, and adds the shared experts' output and rounds the sum. Sizes are
// DeepSeek-V3's. The teams take turns, so that other work on the machine is the same for both. One
// line of JSON for each part and for all together: ms (medians) and the ratio of each pair.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "base/rows.h"
#include "bench/experts/paired.h"
#include "bench/machine/stopwatch.h"
#include "layer/outputs.h"
#include "trimtab/error.h"
#include "trimtab/router.h"

namespace {

using namespace trimtab;

struct Options {
  int tokens = 4096;
  int threads = 2;
  int pairs = 31;
};

constexpr int kHidden = 7168, kExperts = 256, kTopK = 8;

RouterConfig deepseek_v3() {
  RouterConfig config{.num_experts = kExperts, .top_k = kTopK};
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 8;
  config.top_groups = 4;
  config.group_score = GroupScore::kTop2Sum;
  config.selection_bias.assign(kExperts, 0.01F);
  config.routed_scaling_factor = 2.5F;
  return config;
}

// The memory of one call, and its parts.
class Call {
 public:
  explicit Call(int64_t tokens)
      : tokens_(tokens),
        logits_(random(tokens * kExperts)),
        x_(random(tokens * kHidden)),
        shared_(random(tokens * kHidden)),
        routed_(x_.size()),
        rounded_(x_.size()),
        out_(x_.size()),
        ids_(tokens * kTopK),
        weights_(ids_.size()) {}

  void route(Team& team) {
    router_.route(ConstRows(logits_.data(), tokens_, kExperts), {}, {ids_, weights_}, team);
  }
  void round(Team& team) { convert_rows(x(), Rows(rounded_.data(), tokens_, kHidden), team); }
  void add(Team& team) {
    write_outputs({.x = x(),
                   .identity = {},
                   .routed = Rows(routed_.data(), tokens_, kHidden),
                   .shared = Rows(shared_.data(), tokens_, kHidden)},
                  Rows(out_.data(), tokens_, kHidden), team);
  }
  void all(Team& team) {
    route(team);
    round(team);
    add(team);
  }
  // What the parts have made, as bytes.
  std::vector<std::vector<std::byte>> made() const {
    std::vector<std::vector<std::byte>> copies;
    const auto keep = [&](const auto& values) {
      const auto bytes = std::as_bytes(std::span(values));
      copies.emplace_back(bytes.begin(), bytes.end());
    };
    keep(ids_), keep(weights_), keep(rounded_), keep(out_);
    return copies;
  }
  // As before the first call.
  void reset() { std::ranges::fill(routed_, 0.25F); }

 private:
  static std::vector<float> random(int64_t count) {
    std::mt19937 bits(1);
    std::uniform_real_distribution<float> value(-4.0F, 4.0F);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = value(bits);
    return values;
  }
  ConstRows x() const { return {x_.data(), tokens_, kHidden}; }

  int64_t tokens_;
  std::vector<float> logits_, x_, shared_, routed_;
  std::vector<bf16_t> rounded_, out_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  Router router_{deepseek_v3()};
};

void run(const Options& options) {
  Call call(options.tokens);
  Team one(1), several(options.threads);
  call.reset();
  call.all(one);
  const auto wanted = call.made();
  call.reset();
  call.all(several);
  if (call.made() != wanted) throw Error("the teams' results differ");
  const struct {
    const char* name;
    void (Call::*part)(Team&);
  } parts[] = {
      {"route", &Call::route}, {"round", &Call::round}, {"add", &Call::add}, {"all", &Call::all}};
  for (const auto& [name, part] : parts) {
    const auto ms = [&](Team& team) {
      const bench::Stopwatch watch(CLOCK_MONOTONIC);
      (call.*part)(team);
      return 1e3 * watch.seconds();
    };
    std::vector<double> alone, shared, ratios;
    for (int pair = 0; pair < options.pairs; ++pair) {
      alone.push_back(ms(one));
      shared.push_back(ms(several));
      ratios.push_back(alone.back() / shared.back());
    }
    const bench::Spread ratio = bench::spread_of(ratios);
    std::printf(
        "{\"part\": \"%s\", \"tokens\": %d, \"threads\": %d, \"ms_of_one\": %.2f, \"ms\": %.2f, "
        "\"ratio\": %.2f, \"ratio_quartiles\": [%.2f, %.2f], \"pairs\": %d}\n",
        name, options.tokens, options.threads, bench::spread_of(alone).median,
        bench::spread_of(shared).median, ratio.median, ratio.low, ratio.high, options.pairs);
    std::fflush(stdout);
  }
}

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: bench_call [--tokens N] [--threads N] [--pairs N]\n");
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view arg = argv[i], text = i + 1 < argc ? argv[i + 1] : "";
    int value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 1) usage();
    if (arg == "--tokens") {
      options.tokens = value;
    } else if (arg == "--threads") {
      options.threads = value;
    } else if (arg == "--pairs") {
      options.pairs = value;
    } else {
      usage();
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_call: %s\n", error.what());
    return 1;
  }
  return 0;
}
