// SPDX-License-Identifier: Apache-2.0
// Attention of one layer against this machine's peak and stream: the last tokens of one sequence,
// with caches of keys and values that no cache of the processor holds. See
// docs/decisions/0010-attention.md.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/kv_head.h"
#include "bench/experts/paired.h"
#include "bench/machine/ceilings.h"
#include "experts/isa.h"
#include "trimtab/experts.h"

namespace {

using namespace trimtab;

struct Options {
  int heads = 32, key_heads = 4, head_dim = 128;
  int threads = 1;
  KvFormat kv = KvFormat::kF32;
};

constexpr struct {
  int64_t tokens, context;
} kCases[] = {{1, 256}, {1, 1024}, {1, 4096}, {1, 16384}, {256, 256}, {256, 2048}, {256, 8192}};

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// One layer's queries, caches and output.
class Layer {
 public:
  Layer(const Options& options, int64_t tokens, int64_t context)
      : options_(options),
        layout_(KvLayout::of(context, options.head_dim)),
        tokens_(tokens),
        context_(context),
        q_(random_floats(tokens * row())),
        out_(tokens * row()),
        cache_(cells(options.key_heads, KvHead::bytes(layout_, options.kv))) {
    const std::vector<float> values = random_floats(context * options.head_dim);
    for (int head = 0; head < options.key_heads; ++head) {
      for (int64_t p = 0; p < context; ++p) {
        const float* const vector = values.data() + p * options.head_dim;
        head_of(head).store(vector, vector, p);
      }
    }
  }

  std::vector<QueryTile> tiles() {
    const int group = options_.heads / options_.key_heads;
    const int64_t most = QueryTile::kMaxRows / group;
    std::vector<QueryTile> tiles;
    for (int64_t token = 0; token < tokens_; token += most) {
      const int64_t count = std::min(most, tokens_ - token);
      for (int head = 0; head < options_.key_heads; ++head) {
        const int64_t at = token * row() + int64_t{head} * group * options_.head_dim;
        tiles.push_back({.q = q_.data() + at,
                         .q_stride = row(),
                         .out = out_.data() + at,
                         .out_stride = row(),
                         .rows = static_cast<int>(count) * group,
                         .group = group,
                         .position = context_ - tokens_ + token,
                         .window = 0});
        head_of(head).give(tiles.back());
      }
    }
    return tiles;
  }

  size_t cache_bytes() const { return cache_.bytes(); }

 private:
  KvHead head_of(int head) const {
    return {cache_.data() + cells(head, KvHead::bytes(layout_, options_.kv)), layout_, options_.kv};
  }
  int64_t row() const { return int64_t{options_.heads} * options_.head_dim; }

  Options options_;
  KvLayout layout_;
  int64_t tokens_, context_;
  std::vector<float> q_, out_;
  Buffer cache_;
};

void run(const Options& options) {
  Team team(options.threads);
  bench::Ceilings ceilings(bench::chosen_loops(), team, bench::cold_bytes(size_t{512} << 20));
  const Attention attention(attention_kernels(kernel_isa()), options.head_dim, options.threads);
  const Buffer memory(attention.workspace_bytes());
  std::printf("%d heads, %d of keys and values, head_dim %d, %s, %s, %d threads\n\n", options.heads,
              options.key_heads, options.head_dim, name(options.kv).data(),
              attention_kernels(kernel_isa()).isa, options.threads);
  std::printf("tokens  context        ms (quartiles)    GFLOP/s  %% of peak  %% of stream\n");
  for (const auto& [tokens, context] : kCases) {
    std::vector<Layer> layers;
    size_t bytes = 0;
    while (bytes < size_t{160} << 20) {
      layers.emplace_back(options, tokens, context);
      bytes += layers.back().cache_bytes();
    }
    std::vector<std::vector<QueryTile>> tiles;
    for (Layer& layer : layers) tiles.push_back(layer.tiles());
    // Each query meets the positions up to its own, in the scores and in the values.
    const double pairs =
        static_cast<double>(tokens) * (static_cast<double>(context) - 0.5 * (double(tokens) - 1));
    const bench::Part part{4.0 * pairs * options.heads * options.head_dim,
                           static_cast<double>(layers[0].cache_bytes())};
    const bench::Timing t = bench::measure({[&](int64_t call) {
                                              attention.run(tiles[call % std::ssize(tiles)],
                                                            {memory.data(), memory.bytes()}, team);
                                            },
                                            [&](int64_t) { return std::span(&part, 1); }},
                                           bench::DotKind::kF32, {}, ceilings);
    std::printf("%6d %8d %9.3f (%.3f-%.3f) %9.1f %10.1f %12.1f\n", static_cast<int>(tokens),
                static_cast<int>(context), t.ms.median, t.ms.low, t.ms.high, t.gflops,
                t.pct_peak.median, t.pct_stream.median);
    std::fflush(stdout);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view arg = argv[i], text = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--kv") {
      options.kv = parse_kv_format(text);
      continue;
    }
    int value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    int* const option = arg == "--heads"       ? &options.heads
                        : arg == "--key-heads" ? &options.key_heads
                        : arg == "--head-dim"  ? &options.head_dim
                        : arg == "--threads"   ? &options.threads
                                               : nullptr;
    if (option == nullptr || parsed.ec != std::errc() || value < 1) {
      std::fprintf(stderr,
                   "usage: bench_attention [--heads N] [--key-heads N] [--head-dim N] "
                   "[--threads N] [--kv f32|bf16|i8]\n");
      std::exit(2);
    }
    *option = value;
  }
  if (options.heads % options.key_heads != 0 ||
      options.heads / options.key_heads > QueryTile::kMaxRows) {
    std::fprintf(stderr, "the heads must be up to 48 for each head of keys\n");
    std::exit(2);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
