// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/dispatch_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <span>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "bench/dispatch/rank_means.h"
#include "bench/dispatch/source_pipeline.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

// Milliseconds.
struct Duration {
  double wall = 0, cpu = 0;
};

class BothClocks {
 public:
  Duration elapsed() const { return {1e3 * wall_.seconds(), 1e3 * cpu_.seconds()}; }

 private:
  Stopwatch wall_{CLOCK_MONOTONIC}, cpu_{CLOCK_THREAD_CPUTIME_ID};
};

std::vector<int32_t> even_slots(int ranks, int num_experts) {
  std::vector<int32_t> first;
  for (int r = 0; r <= ranks; ++r)
    first.push_back(static_cast<int32_t>(int64_t{num_experts} * r / ranks));
  return first;
}

std::unique_ptr<Dispatcher> make_subject(const DispatchCase& subject, Communicator& comm) {
  const std::vector<int32_t> first = even_slots(comm.size(), subject.num_experts);
  DispatchShape shape{subject.tokens, subject.hidden, subject.top_k, subject.dtype, first};
  if (subject.dispatcher == "source") return make_source_pipeline(shape, comm.rank());
  // Twice an even share. Picks are random: with few tokens that is not enough, and an expert may
  // get all.
  if (subject.dispatcher == "pull_batched") {
    const int64_t tokens = subject.tokens * comm.size();
    shape.capacity = std::min(tokens, 2 * tokens * subject.top_k / subject.num_experts + 32);
  }
  return make_dispatcher(subject.dispatcher, shape, comm.rank(), comm.hosts());
}

// This rank's tokens: different experts for each pick, at random.
class Batch {
 public:
  Batch(const DispatchCase& subject, int rank)
      : scales_(scale_shape(subject.dtype, subject.hidden)),
        values_(cells(subject.tokens, subject.hidden)),
        rows_(shape_bytes(subject.dtype, values_.size())),
        row_scales_(cells(subject.tokens) * scales_.row_bytes()),
        x_(rows_.data(), subject.tokens, subject.hidden, subject.hidden, subject.dtype) {
    std::mt19937 random(rank + 1);
    std::uniform_real_distribution<float> value(-1.0F, 1.0F);
    for (float& v : values_) v = value(random);
    fill_rows();
    std::vector<int32_t> experts(subject.num_experts);
    std::iota(experts.begin(), experts.end(), 0);
    for (int64_t t = 0; t < subject.tokens; ++t) {
      for (size_t k = 0; k < cells(subject.top_k); ++k) {
        std::swap(experts[k],
                  experts[std::uniform_int_distribution<size_t>(k, experts.size() - 1)(random)]);
        ids_.push_back(experts[k]);
        weights_.push_back(value(random));
      }
    }
  }

  Request request(int top_k) const { return {x_, ids_, weights_, top_k, false, scales()}; }
  // Is out the sum of the weights times x?
  void verify(ConstRows out, const DispatchCase& subject) const {
    std::vector<float> x(x_.cols);
    const size_t top_k = subject.top_k;
    for (int64_t t = 0; t < x_.rows; ++t) {
      read_row(t, x);
      double weight = 0, magnitude = 0;
      for (const float w : std::span(weights_).subspan(cells(t) * top_k, top_k)) {
        weight += w;
        magnitude += std::abs(w);
      }
      for (size_t h = 0; h < x.size(); ++h) {
        const float got = out.row_as<float>(t)[h];
        if (!(std::abs(got - weight * x[h]) <= 1e-5 * magnitude * std::abs(x[h]))) {
          throw Error(cat("bench dispatch: ", subject.dispatcher, " gives ", got, " for token ", t,
                          ", column ", h, ", expected ", weight * x[h]));
        }
      }
    }
  }
  // What an expert makes of a row: the row itself.
  static void copy_as_f32(ConstRows x, ConstRows scales, float* to) {
    const Rows y(to, 1, x.cols);
    if (scale_shape(x.dtype, x.cols).cols > 0) return dequantize_rows(x, scales, y);
    for (int64_t h = 0; h < x.cols; ++h) {
      to[h] = x.dtype == DType::kBF16 ? to_float(x.row_as<bf16_t>(0)[h]) : x.row_as<float>(0)[h];
    }
  }

 private:
  Rows scales() const {
    if (scales_.cols == 0) return {};
    return {const_cast<std::byte*>(row_scales_.data()), x_.rows, scales_.cols, scales_.cols,
            scales_.dtype};
  }
  void fill_rows() {
    if (scales_.cols > 0)
      return quantize_rows(ConstRows(values_.data(), x_.rows, x_.cols), x_, scales());
    for (size_t i = 0; i < values_.size(); ++i) {
      if (x_.dtype == DType::kBF16) {
        reinterpret_cast<bf16_t*>(rows_.data())[i] = to_bf16(values_[i]);
      } else {
        reinterpret_cast<float*>(rows_.data())[i] = values_[i];
      }
    }
  }
  void read_row(int64_t t, std::vector<float>& to) const {
    copy_as_f32(x_.slice(t, 1), scales().slice(t, 1), to.data());
  }

  ScaleShape scales_;
  std::vector<float> values_;
  std::vector<std::byte> rows_, row_scales_;
  Rows x_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

void fill_answers(const Tokens& tokens, Rows y) {
  std::optional<Board::Reading> reading;
  if (tokens.board != nullptr) reading.emplace(*tokens.board);
  int64_t begin = 0;
  for (size_t e = 0; e < tokens.counts.size(); ++e) {
    if (tokens.format == Format::kBatched) begin = e * tokens.capacity;
    for (int64_t row = begin; row < begin + tokens.counts[e]; ++row) {
      Batch::copy_as_f32(tokens.row(row), tokens.row_scales(row), y.row_as<float>(row));
    }
    begin += tokens.counts[e];
  }
}

int64_t rows_of(const Tokens& tokens) {
  int64_t rows = 0;
  for (const int32_t count : tokens.counts) rows += count;
  return rows;
}

// One rank's times of one round.
struct Times {
  Duration dispatch, combine, memcpy;
};

class RankBench {
 public:
  RankBench(Communicator& comm, const DispatchCase& subject)
      : comm_(comm),
        subject_(subject),
        batch_(subject, comm.rank()),
        dispatcher_(make_subject(subject, comm)),
        owned_groups_(dispatcher_->make_groups(comm)),
        groups_(pointers_to(owned_groups_)),
        workspace_(comm.allocate(dispatcher_->workspace_bytes())),
        y_(subject.dispatcher == "source"
               ? cells(dispatcher_->max_rows(), subject.hidden) * sizeof(float)
               : 0),
        out_(cells(subject.tokens, subject.hidden)) {
    Times ignored;
    exchange(ignored, true);
    batch_.verify(out(), subject_);
  }

  Times round() {
    Times times;
    exchange(times, false);
    comm_.barrier();
    const BothClocks watch;
    std::memcpy(to_.data(), from_.data(), to_.bytes());
    times.memcpy = watch.elapsed();
    comm_.barrier();
    return times;
  }

 private:
  Rows out() { return {out_.data(), subject_.tokens, subject_.hidden}; }

  void exchange(Times& times, bool first) {
    Lane lane{comm_, workspace_, team_, groups_};
    workspace_.release(0);
    const BothClocks dispatching;
    const ExchangePtr exchange = dispatcher_->dispatch(batch_.request(subject_.top_k), lane);
    exchange->wait(Stage::kArrived);
    times.dispatch = dispatching.elapsed();
    const Tokens& tokens = exchange->tokens();
    const Rows y = y_.bytes() > 0 ? Rows(y_.as<float>(), tokens.x.rows, subject_.hidden) : tokens.y;
    fill_answers(tokens, y);
    if (first) {
      const size_t results =
          cells(subject_.tokens, subject_.top_k, subject_.hidden) * sizeof(float);
      from_ = Buffer(cells(rows_of(tokens)) * tokens.x.row_bytes() + results);
      to_ = Buffer(from_.bytes());
      std::memset(from_.data(), 1, from_.bytes());
      std::memset(to_.data(), 1, to_.bytes());
    }
    const BothClocks combining;
    exchange->send_back(y, Left::kWeightAndSum);
    exchange->wait(Stage::kReturned);
    exchange->finish(out());
    exchange->wait(Stage::kDrained);
    times.combine = combining.elapsed();
  }

  Communicator& comm_;
  const DispatchCase& subject_;
  const Batch batch_;
  const std::unique_ptr<Dispatcher> dispatcher_;
  const std::vector<std::unique_ptr<Communicator>> owned_groups_;
  const std::vector<Communicator*> groups_;
  Workspace workspace_;
  Buffer y_, from_, to_;
  std::vector<float> out_;
  Team team_{1};
};

// The means over the ranks.
Times mean_of(Communicator& comm, const Times& own) {
  std::array values = {own.dispatch.wall, own.dispatch.cpu, own.combine.wall,
                       own.combine.cpu,   own.memcpy.wall,  own.memcpy.cpu};
  take_means_over_ranks(comm, values);
  return {{values[0], values[1]}, {values[2], values[3]}, {values[4], values[5]}};
}

// Over all rounds, of one of their figures.
template <class Figure>
Spread spread(const std::vector<Times>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Times& round : rounds) values.push_back(figure(round));
  return spread_of(std::move(values));
}

}  // namespace

DispatchRow bench_dispatch(Communicator& comm, const DispatchCase& subject, const Effort& effort) {
  RankBench bench(comm, subject);
  std::vector<Times> rounds;
  double total = 0;  // the same on every rank, as all see the same means
  while (std::ssize(rounds) < effort.least ||
         (total < effort.seconds * 1e3 && std::ssize(rounds) < effort.most)) {
    rounds.push_back(mean_of(comm, bench.round()));
    total += rounds.back().dispatch.wall + rounds.back().combine.wall + rounds.back().memcpy.wall;
  }
  return {.subject = subject,
          .ms_dispatch = spread(rounds, [](const Times& t) { return t.dispatch.wall; }),
          .ms_combine = spread(rounds, [](const Times& t) { return t.combine.wall; }),
          .ms_memcpy = spread(rounds, [](const Times& t) { return t.memcpy.wall; }),
          .cpu_ms_dispatch = spread(rounds, [](const Times& t) { return t.dispatch.cpu; }),
          .cpu_ms_combine = spread(rounds, [](const Times& t) { return t.combine.cpu; }),
          .cpu_ms_memcpy = spread(rounds, [](const Times& t) { return t.memcpy.cpu; }),
          .pct_of_memcpy = spread(
              rounds,
              [](const Times& t) { return 100 * t.memcpy.cpu / (t.dispatch.cpu + t.combine.cpu); }),
          .rounds = static_cast<int>(rounds.size())};
}

}  // namespace trimtab::bench
