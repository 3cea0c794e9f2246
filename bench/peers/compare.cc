// SPDX-License-Identifier: Apache-2.0
// The whole experts stage with another library's products and with ours, call by call in turn:
// peer, ours, peer, ours. See bench/peers/README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/cat.h"
#include "bench/experts/expert_stage.h"
#include "bench/experts/layer_bench.h"
#include "bench/experts/verify.h"
#include "bench/machine/stopwatch.h"
#include "bench/peers/peer_experts.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {

#if !defined(TRIMTAB_PEER_ONEDNN) && !defined(TRIMTAB_PEER_LIBXSMM)
#error "CMake builds this program only where there is a peer"
#endif

std::span<const Peer> peers() {
  static constexpr Peer kPeers[] = {
#ifdef TRIMTAB_PEER_ONEDNN
      {"onednn", make_onednn_experts},
#endif
#ifdef TRIMTAB_PEER_LIBXSMM
      {"libxsmm", make_libxsmm_experts},
#endif
  };
  return kPeers;
}

namespace {

struct Options {
  std::string peer{peers().front().name};
  std::string shape = "qwen3-30b";
  std::string dtype = "bf16";
  std::string routing = "natural";
  std::vector<int64_t> tokens = {1, 4, 16, 64, 256, 1024, 4096};
  int threads = 1;
  int cold_mb = 1280;
  double seconds = 2.0;
};

const Peer& find_peer(const std::string& name) {
  std::string names;
  for (const Peer& peer : peers()) {
    if (peer.name == name) return peer;
    names += cat(names.empty() ? "" : ", ", peer.name);
  }
  throw InvalidArgument(cat(name, " is not a peer of this build: ", names));
}

double seconds_of(ExpertStage& stage, ConstRows x, const Picks& picks, Rows out, const Team& team) {
  const Stopwatch watch(team);
  stage.run(x, picks, out);
  return watch.seconds();
}

struct Compared {
  Spread peer_ms, our_ms, ratio;  // ratio: peer / ours
  Spread peer_pct_roof, our_pct_roof;
  int pairs;
};

Compared compare(ExpertStage& peer, ExpertStage& ours, ConstRows x, const LayerCalls& calls,
                 Rows out, DotKind dot, Ceilings& ceilings, double seconds) {
  const Team& team = ceilings.team();
  // Whatever a library makes for a number of rows, it makes now.
  for (const Picks& picks : calls.picks) peer.run(x, picks, out);
  std::vector<double> peer_ms, our_ms, ratio, peer_roof, our_roof;
  double spent = 0;
  for (int64_t call = 0; call < 7 || (spent < seconds && call < 301); ++call) {
    const Picks& picks = calls.picks[calls.at(call)];
    const double peak = ceilings.peak(dot), stream = ceilings.stream();
    const double roof = roof_seconds(calls.parts[calls.at(call)], peak, stream);
    const double theirs = seconds_of(peer, x, picks, out, team);
    const double own = seconds_of(ours, x, picks, out, team);
    peer_ms.push_back(1e3 * theirs);
    our_ms.push_back(1e3 * own);
    ratio.push_back(theirs / own);
    peer_roof.push_back(100 * roof / theirs);
    our_roof.push_back(100 * roof / own);
    spent += theirs + own;
  }
  return {spread_of(peer_ms),   spread_of(our_ms),   spread_of(ratio),
          spread_of(peer_roof), spread_of(our_roof), static_cast<int>(ratio.size())};
}

void print(const Options& options, int64_t tokens, const Compared& result) {
  std::printf(
      "{\"peer\": \"%s\", \"model\": \"%s\", \"dtype\": \"%s\", \"routing\": \"%s\", \"tokens\": "
      "%lld, \"threads\": "
      "%d, \"peer_ms\": %.4f, \"ms\": %.4f, \"peer_pct_roof\": %.1f, \"pct_roof\": %.1f, "
      "\"ratio\": %.3f, "
      "\"ratio_quartiles\": [%.3f, %.3f], \"pairs\": %d}\n",
      options.peer.c_str(), options.shape.c_str(), options.dtype.c_str(), options.routing.c_str(),
      static_cast<long long>(tokens), options.threads, result.peer_ms.median, result.our_ms.median,
      result.peer_pct_roof.median, result.our_pct_roof.median, result.ratio.median,
      result.ratio.low, result.ratio.high, result.pairs);
  std::fflush(stdout);
}

void run(const Options& options, Communicator& comm) {
  const ModelShape& model = parse_model(options.shape);
  const WeightDType& dtype = find_weight_dtype(options.dtype);
  const RoutingKind routing = find_routing(options.routing);
  Team team(options.threads);
  const size_t cold = cold_bytes(cells(options.cold_mb) << 20);
  Ceilings ceilings(chosen_loops(), team, cold);
  const int64_t count = num_cold_experts(model, dtype, cold);
  const ExpertSet set(dtype, model.hidden, model.intermediate, count, team);
  const int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  ExpertStage peer(model, find_peer(options.peer).make({model, dtype, set, options.threads}), most,
                   comm, team);
  ExpertStage ours(model, make_experts(model, dtype, set), most, comm, team);
  Buffer x_memory(shape_bytes(dtype.rows, most, model.hidden));
  Buffer out_memory(cells(most, model.hidden) * sizeof(float));
  const Rows x_all(x_memory.data(), most, model.hidden, model.hidden, dtype.rows);
  fill_random(x_all, 1.0, 4, team);
  for (const int64_t tokens : options.tokens) {
    const Rows x = x_all.slice(0, tokens), out(out_memory.as<float>(), tokens, model.hidden);
    const LayerCalls calls(model, dtype, tokens, routing);
    for (ExpertStage* stage : {&peer, &ours}) {
      stage->run(x, calls.picks[0], out);
      verify_layer(
          dtype, [&](int32_t slot) { return set.source(slot % set.size()); }, x, calls.picks[0].ids,
          calls.picks[0].weights, model.top_k, out, stage == &peer ? options.peer : "trimtab");
    }
    const Compared result =
        compare(peer, ours, x, calls, out, dtype.dot, ceilings, options.seconds);
    print(options, tokens, result);
  }
}

}  // namespace
}  // namespace trimtab::bench

int main(int argc, char** argv) {
  trimtab::bench::Options options;
  CLI::App app(
      "Compares the experts stage with another library's products and with ours, in turn, on "
      "random weights.");
  app.add_option("--peer", options.peer, "Whose products");
  app.add_option("--shape", options.shape, "Model");
  app.add_option("--dtype", options.dtype, "Of the weights");
  app.add_option("--routing", options.routing, "natural or skewed");
  app.add_option("--tokens", options.tokens, "Numbers of tokens")->delimiter(',');
  app.add_option("--threads", options.threads, "Threads of both");
  app.add_option("--cold-mb", options.cold_mb, "Megabytes of weights to cycle through, of each");
  app.add_option("--seconds", options.seconds, "For each number of tokens, at least 7 pairs");
  CLI11_PARSE(app, argc, argv);
  try {
    trimtab::run_ranks(1, [&](trimtab::Communicator& comm) { trimtab::bench::run(options, comm); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_peers: %s\n", error.what());
    return 1;
  }
  return 0;
}
