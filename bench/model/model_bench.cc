// SPDX-License-Identifier: Apache-2.0
#include "bench/model/model_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/random.h"
#include "bench/machine/stopwatch.h"
#include "comm/rank_bytes.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

// The last tokens before those that are timed, which are each sequence's own: what a router picks
// depends on what came just before.
constexpr int64_t kOwnTokens = 16;

// A round of decode steps takes at least so long; less would be lost in the time that threads take
// to wake up.
constexpr double kRoundSeconds = 5e-3;

// The least time for parts of several formats, each of which has a peak of its own.
double least_seconds(std::span<const WorkPart> parts, const std::array<double, 3>& peaks,
                     double stream) {
  double seconds = 0;
  for (const WorkPart& work : parts)
    seconds += roof_seconds({&work.part, 1}, peaks[static_cast<size_t>(work.dot)], stream);
  return seconds;
}

int ranks_on_host(const Communicator& comm) {
  const std::span<const int32_t> hosts = comm.hosts();
  return static_cast<int>(std::ranges::count(hosts, hosts[comm.rank()]));
}

}  // namespace

ModelBench::ModelBench(Decoder& decoder, const DecoderWeights& weights, const Placement& placement,
                       KvFormat kv, const ModelEffort& effort)
    : decoder_(decoder),
      weights_(weights),
      kv_(kv),
      effort_(effort),
      ranks_here_(ranks_on_host(decoder.comm())),
      team_(decoder.options().threads),
      work_(weights, kv),
      recorder_(placement.num_layers(), placement.slots_of_rank(decoder.comm().rank()), 1) {
  if (decoder.options().layout)
    throw InvalidArgument("a model is timed with ranks that have sequences of their own");
  const size_t share = bench::cold_bytes(effort.cold_bytes) / cells(ranks_here_);
  ceilings_ = std::make_unique<Ceilings>(chosen_loops(), team_, share);
  // The first steps touch memory for the first time.
  KvCache cache(decoder.config(), kOwnTokens, kv_);
  const std::vector<int32_t> ids = tokens(0, 0, kOwnTokens);
  const Chunk chunk{&cache, ids, Chunk::Logits::kLast};
  step({&chunk, 1});
}

int32_t ModelBench::token(uint64_t sequence, int64_t position) const {
  const uint64_t rank = static_cast<uint64_t>(decoder_.comm().rank());
  const uint64_t mixed =
      split_mix64(split_mix64(rank + sequence * 65'537) + static_cast<uint64_t>(position));
  return static_cast<int32_t>(mixed % static_cast<uint64_t>(decoder_.config().vocab_size));
}

std::vector<int32_t> ModelBench::tokens(uint64_t sequence, int64_t first, int64_t count) const {
  std::vector<int32_t> ids(cells(count));
  for (int64_t i = 0; i < count; ++i) ids[i] = token(sequence, first + i);
  return ids;
}

void ModelBench::check_positions(int64_t count) const {
  const int most = decoder_.config().max_position_embeddings;
  if (most > 0 && count > most) {
    throw InvalidArgument(cat(count, " positions; max_position_embeddings of the model is ", most));
  }
}

void ModelBench::check_memory(int64_t batch, int64_t positions) const {
  const size_t wanted =
      cells(batch, positions, KvCache::bytes_per_position(decoder_.config(), kv_), ranks_here_);
  const size_t free = free_memory();
  // All ranks throw, or none.
  if (max_of_ranks(wanted > free ? 1 : 0) == 0) return;
  throw InvalidArgument(cat("keys and values of ", batch, " sequences of ", positions,
                            " positions on each rank take ", wanted >> 20, " MB, and ", free >> 20,
                            " MB are free; ask for fewer, or for a smaller format of them"));
}

std::vector<double> ModelBench::of_ranks(double mine) const {
  std::vector<double> all;
  for (const auto& bytes : bytes_of_ranks(decoder_.comm(), std::as_bytes(std::span(&mine, 1)))) {
    all.push_back(values_of<double>(bytes)[0]);
  }
  return all;
}
double ModelBench::max_of_ranks(double mine) const {
  return std::ranges::max(of_ranks(mine));
}
double ModelBench::sum_of_ranks(double mine) const {
  const std::vector<double> all = of_ranks(mine);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

// Runs a step and adds what it reads and computes.
void ModelBench::step(std::span<const Chunk> batch) {
  const std::vector<WorkOfChunk> chunks = work_of(batch);
  int64_t wanted = 0;
  for (const WorkOfChunk& chunk : chunks) wanted += chunk.logits;
  const int64_t vocab = decoder_.config().vocab_size;
  logits_.resize(std::max(logits_.size(), cells(wanted, vocab)));
  recorder_.begin_step();
  decoder_.step(batch, Rows(logits_.data(), wanted, vocab), &recorder_);
  work_.add(chunks);
  for (int layer = 0; layer < recorder_.num_layers(); ++layer)
    work_.add_experts(recorder_.counts(layer));
  recorder_.skip_step();
  ++steps_;
}

// Times body(), which makes the steps of a row, in rounds of so many calls.
template <class Body>
ModelRow ModelBench::measure(ModelRow row, int64_t repeats, const Body& body) {
  std::vector<double> ms, of_stream, of_roof;
  const Stopwatch whole(CLOCK_MONOTONIC);
  for (bool goes_on = true; goes_on;) {
    decoder_.comm().barrier();
    // All ranks measure at the same time, as they then read at the same time.
    const double stream = ceilings_->stream();
    std::array<double, 3> peaks = {};
    for (const DotKind kind : {DotKind::kF32, DotKind::kBF16, DotKind::kI8})
      peaks[static_cast<size_t>(kind)] = ceilings_->peak(kind);
    work_.clear();
    steps_ = 0;
    decoder_.comm().barrier();
    const Stopwatch watch(CLOCK_MONOTONIC);
    for (int64_t i = 0; i < repeats; ++i) body();
    const double seconds = max_of_ranks(watch.seconds());
    const double calls = static_cast<double>(repeats);
    const double all_streams = sum_of_ranks(stream);
    const double roof = max_of_ranks(least_seconds(work_.parts(), peaks, stream));
    const double bytes = sum_of_ranks(work_.bytes());
    row.bytes = bytes / calls;
    row.steps = steps_ / repeats;
    row.active_experts = sum_of_ranks(static_cast<double>(work_.active_experts())) /
                         static_cast<double>(std::max(1, recorder_.num_layers()) * steps_);
    ms.push_back(1e3 * seconds / calls);
    of_stream.push_back(100 * bytes / all_streams / seconds);
    of_roof.push_back(100 * roof / seconds);
    streams_.push_back(all_streams);
    ++row.rounds;
    const bool enough = row.rounds >= effort_.least &&
                        (row.rounds >= effort_.most || whole.seconds() >= effort_.seconds);
    goes_on = of_ranks(enough ? 0.0 : 1.0)[0] > 0;
  }
  row.ms = spread_of(std::move(ms));
  row.pct_stream = spread_of(std::move(of_stream));
  row.pct_roof = spread_of(std::move(of_roof));
  row.tokens_per_second =
      static_cast<double>(row.batch * row.tokens * decoder_.comm().size()) / (1e-3 * row.ms.median);
  return row;
}

ModelRow ModelBench::prefill(int64_t count) {
  check_positions(count);
  KvCache cache(decoder_.config(), count, kv_);
  const std::vector<int32_t> ids = tokens(0, 0, count);
  return measure({.batch = 1, .tokens = count}, 1, [&] {
    cache.truncate(0);
    for (std::span<const int32_t> rest = ids; !rest.empty();) {
      const auto now =
          rest.first(std::min<size_t>(rest.size(), cells(decoder_.options().max_tokens)));
      rest = rest.subspan(now.size());
      const Chunk chunk{&cache, now, rest.empty() ? Chunk::Logits::kLast : Chunk::Logits::kNone};
      step({&chunk, 1});
    }
  });
}

ModelRow ModelBench::decode(int64_t batch, int64_t context) {
  check_positions(context + 1);
  check_memory(batch, context + 1);
  const int64_t max_tokens = decoder_.options().max_tokens;
  const int64_t own = std::min({context, kOwnTokens, max_tokens});
  const auto feed = [&](KvCache& cache, uint64_t sequence, int64_t count) {
    while (count > 0) {
      const int64_t now = std::min(count, max_tokens);
      const std::vector<int32_t> ids = tokens(sequence, cache.length(), now);
      const Chunk chunk{&cache, ids};
      step({&chunk, 1});
      count -= now;
    }
  };
  KvCache common(decoder_.config(), context + 1, kv_);
  feed(common, 0, context - own);
  std::vector<KvCache> caches;
  for (int64_t s = 0; s < batch; ++s) {
    caches.push_back(common.copy());
    feed(caches.back(), cells(s + 1), own);
  }
  int64_t steps = 0;
  const auto one_step = [&] {
    std::vector<Chunk> chunks;
    std::vector<int32_t> ids(cells(batch));
    for (int64_t s = 0; s < batch; ++s) {
      caches[s].truncate(context);
      ids[s] = token(cells(s + 1), context + steps);
      chunks.push_back({&caches[s], std::span(ids).subspan(cells(s), 1), Chunk::Logits::kLast});
    }
    ++steps;
    step(chunks);
  };
  const Stopwatch watch(CLOCK_MONOTONIC);
  one_step();
  const double repeats = std::ceil(kRoundSeconds / watch.seconds());
  return measure({.batch = batch, .context = context, .tokens = 1},
                 static_cast<int64_t>(std::clamp(of_ranks(repeats)[0], 1.0, 64.0)), one_step);
}

double ModelBench::stream() const {
  return spread_of(streams_).median;
}

}  // namespace trimtab::bench
