// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_recorder.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "comm/rank_bytes.h"
#include "load/episodes.h"
#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

template <class To, class From>
void add_to(std::vector<To>& sum, const From& values) {
  std::ranges::transform(sum, values, sum.begin(), std::plus());
}

// A time in two halves, for logs of 32-bit numbers.
int32_t low_half(int64_t time) {
  return static_cast<int32_t>(static_cast<uint32_t>(time));
}
int32_t high_half(int64_t time) {
  return static_cast<int32_t>(time >> 32);
}
int64_t of_halves(int32_t low, int32_t high) {
  return (int64_t{high} << 32) | static_cast<uint32_t>(low);
}

}  // namespace

std::vector<StepRange> thirds(int64_t num_steps) {
  if (num_steps < 3) return {};
  const EpisodeCut cut = EpisodeCut::spread(num_steps, 3);
  return {cut[0], cut[1], cut[2]};
}

RunRecorder::RunRecorder(const Placement& start, int ranks, int writers, StepWants wants)
    : layers_(start.num_layers()),
      experts_(start.num_experts()),
      ranks_(ranks),
      writers_(writers),
      layout_(wants.layout),
      rank_rows_(layers_, std::vector<int64_t>(ranks)),
      rank_times_(rank_rows_),
      expert_rows_(cells(layers_, experts_)) {
  for (OfRank& writer : writers_) {
    writer.rank_rows.resize(layers_);
    writer.rank_times.resize(layers_);
    writer.of_layers.resize(layers_);
    writer.times.resize(cells(layers_, 2));
    writer.expert_rows.resize(cells(layers_, experts_));
    writer.of_experts.resize(cells(layers_, experts_));
  }
  for (int w = 0; w < writers && wants.sampled_picks > 0; ++w) {
    token_recorders_.emplace_back(layers_, experts_, wants.sampled_picks,
                                  sampled_tokens_of_rank(layers_, wants.sampled_picks, ranks));
  }
  const int64_t of_experts = int64_t{layers_} * experts_;
  if (wants.rank_rows) {
    rank_log_.emplace(writers, layers_);
    all_rank_log_.emplace(1, int64_t{layers_} * ranks);
  }
  if (wants.rank_times) {
    time_log_.emplace(writers, int64_t{layers_} * 2);
    all_time_log_.emplace(1, int64_t{layers_} * 2 * ranks);
  }
  if (wants.expert_rows) {
    expert_log_.emplace(writers, of_experts);
    all_expert_log_.emplace(1, of_experts);
  }
}

void RunRecorder::add_step(int rank, int writer, const Placement& now, LoadRecorder& recorder,
                           Phase phase, const CostModel* cost) {
  OfRank& own = writers_[writer];
  std::ranges::fill(own.of_experts, 0);
  int32_t* into = own.of_experts.data();
  for (int layer = 0; layer < layers_; ++layer, into += experts_) {
    const auto rows = recorder.counts(layer);
    const auto held = now.logical(layer).subspan(now.first_slot(rank));
    int32_t sum = 0;
    int64_t work = 0;
    for (int64_t slot = 0; slot < std::ssize(rows); ++slot) {
      into[held[slot]] += rows[slot];
      sum += rows[slot];
      if (cost != nullptr) work += cost->time(rows[slot]);
    }
    own.of_layers[layer] = sum;
    if (cost == nullptr) continue;
    const int64_t time = cost->time_on_rank(work, rank);
    own.rank_times[layer] += time;
    own.times[cells(layer, 2)] = low_half(time);
    own.times[cells(layer, 2) + 1] = high_half(time);
  }
  add_to(own.rank_rows, own.of_layers);
  add_to(own.expert_rows, own.of_experts);
  if (rank_log_) rank_log_->append(writer, own.of_layers);
  if (time_log_) time_log_->append(writer, own.times);
  if (expert_log_) {
    expert_log_->append(writer, own.of_experts);
    own.phases.push_back(phase);
  }
  ++own.steps;
}

void RunRecorder::merge(Communicator* comm) {
  steps_ = writers_[0].steps;
  merge_sums(comm);
  if (!token_recorders_.empty()) merge_tokens_of_ranks(comm);
  if (rank_log_) merge_log(comm, *rank_log_, *all_rank_log_, false);
  if (time_log_) merge_log(comm, *time_log_, *all_time_log_, false);
  if (expert_log_) merge_log(comm, *expert_log_, *all_expert_log_, true);
}

void RunRecorder::merge_sums(Communicator* comm) {
  // sums: [layers] rows, [layers] times, [layers, experts] rows.
  const auto take = [this](int rank, std::span<const int64_t> sums) {
    for (int layer = 0; layer < layers_; ++layer) {
      rank_rows_[layer][rank] = sums[layer];
      rank_times_[layer][rank] = sums[layers_ + layer];
    }
    add_to(expert_rows_, sums.subspan(2 * cells(layers_)));
  };
  const auto sums_of = [](const OfRank& writer) {
    std::vector<int64_t> sums = writer.rank_rows;
    sums.insert(sums.end(), writer.rank_times.begin(), writer.rank_times.end());
    sums.insert(sums.end(), writer.expert_rows.begin(), writer.expert_rows.end());
    return sums;
  };
  if (comm == nullptr) {
    for (int rank = 0; rank < ranks_; ++rank) take(rank, sums_of(writers_[rank]));
    return;
  }
  const std::vector<int64_t> mine = sums_of(writers_[0]);
  const auto all = bytes_to_rank_0(*comm, std::as_bytes(std::span(mine)));
  if (comm->rank() != 0) return;
  for (int rank = 0; rank < ranks_; ++rank) take(rank, values_of<int64_t>(all[rank]));
}

void RunRecorder::merge_tokens_of_ranks(Communicator* comm) {
  std::vector<TokenSample> parts;
  const auto take = [&](int rank, const TokenSample& sample) {
    if (!layout_ || layout_->leads(rank)) parts.push_back(sample);
  };
  if (comm == nullptr) {
    for (int rank = 0; rank < ranks_; ++rank) take(rank, token_recorders_[rank].sample());
  } else {
    const TokenSample& mine = token_recorders_[0].sample();
    std::vector<int64_t> values = {mine.tokens_seen, mine.stride};
    values.insert(values.end(), mine.ids.begin(), mine.ids.end());
    const auto all = bytes_to_rank_0(*comm, std::as_bytes(std::span(values)));
    if (comm->rank() != 0) return;
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<int64_t> of_rank = values_of<int64_t>(all[rank]);
      TokenSample sample = mine;
      sample.tokens_seen = of_rank[0];
      sample.stride = of_rank[1];
      sample.ids.assign(of_rank.begin() + 2, of_rank.end());
      take(rank, sample);
    }
  }
  token_sample_ = merge_tokens(parts, std::ssize(parts) == ranks_);
}

// sums: the row of a step is the sum of the ranks' rows; else they stand side by side.
void RunRecorder::merge_log(Communicator* comm, StepLog& from, StepLog& to, bool sums) {
  const int64_t row = from.row();
  std::vector<int32_t> block;  // [steps, the row of `to`]
  const auto take = [&](int rank, std::span<const int32_t> rows) {
    if (rank == 0) block.assign(rows.size() * (sums ? 1 : ranks_), 0);
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      // [steps, layers] of one rank into [steps, layers, ranks].
      int32_t& at = sums ? block[i] : block[i * ranks_ + rank];
      at += rows[i];
    }
  };
  for (int64_t first = 0; first < steps_; first += from.block_steps()) {
    if (comm == nullptr) {
      for (int rank = 0; rank < ranks_; ++rank) take(rank, from.read(rank, first));
    } else {
      const auto all = bytes_to_rank_0(*comm, std::as_bytes(from.read(0, first)));
      if (comm->rank() != 0) continue;
      for (int rank = 0; rank < ranks_; ++rank) take(rank, values_of<int32_t>(all[rank]));
    }
    const int64_t wide = sums ? row : row * ranks_;
    for (int64_t at = 0; at < std::ssize(block); at += wide)
      to.append(0, std::span(block).subspan(at, wide));
  }
}

void RunRecorder::each_step(
    StepLog& log, const std::function<void(int64_t step, std::span<const int32_t> values)>& take) {
  for (int64_t first = 0; first < steps_; first += log.block_steps()) {
    const auto block = log.read(0, first);
    for (int64_t at = 0; at < std::ssize(block); at += log.row())
      take(first + at / log.row(), block.subspan(at, log.row()));
  }
}

void RunRecorder::each_block(const std::function<void(std::span<const int32_t> rows)>& take) {
  for (int64_t first = 0; first < steps_; first += all_expert_log_->block_steps())
    take(all_expert_log_->read(0, first));
}

std::vector<double> RunRecorder::par_by_third() {
  if (steps_ < 3) return {};
  std::array<std::vector<int64_t>, 3> sums;  // [layers, ranks] each
  for (auto& sum : sums) sum.resize(cells(layers_, ranks_));
  each_step(*all_rank_log_, [&](int64_t step, std::span<const int32_t> rows) {
    const int third = step < steps_ / 3 ? 0 : step < 2 * steps_ / 3 ? 1 : 2;
    add_to(sums[third], rows);
  });
  std::vector<double> pars;
  for (const auto& sum : sums) {
    double mean = 0;
    for (int layer = 0; layer < layers_; ++layer)
      mean += par(std::span(sum).subspan(cells(layer, ranks_), ranks_));
    pars.push_back(mean / layers_);
  }
  return pars;
}

std::vector<double> RunRecorder::par_time_by_third() {
  const std::vector<StepRange> parts = thirds(steps_);
  if (parts.empty()) return {};
  std::vector<double> pars(parts.size());
  std::vector<int64_t> times(ranks_);
  each_step(*all_time_log_, [&](int64_t step, std::span<const int32_t> values) {
    const Table<const int32_t> halves(values, ranks_);
    const size_t third = step < parts[0].last ? 0 : step < parts[1].last ? 1 : 2;
    for (int layer = 0; layer < layers_; ++layer) {
      for (int rank = 0; rank < ranks_; ++rank)
        times[rank] = of_halves(halves(2 * layer, rank), halves(2 * layer + 1, rank));
      pars[third] += par(times) / static_cast<double>(layers_ * parts[third].size());
    }
  });
  return pars;
}

RankLoads RunRecorder::rank_loads() {
  RankLoads loads(steps_, layers_, ranks_);
  each_step(*all_rank_log_, [&](int64_t step, std::span<const int32_t> rows) {
    const Table<const int32_t> of_layers(rows, ranks_);
    for (int layer = 0; layer < layers_; ++layer)
      std::ranges::copy(of_layers[layer], loads.at(step, layer).begin());
  });
  loads.sum_up_window();
  return loads;
}

}  // namespace trimtab::cli
