// SPDX-License-Identifier: Apache-2.0
#include "trimtab/measure_cost.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

// What matters most is measured first: reading the weights alone, and where arithmetic begins to
// cost more.
constexpr int64_t kRows[] = {1, 16, 64, 4, 256, 32, 8, 2, 128, 1024, 512};
constexpr int64_t kMostRowsOfARun = 1024;

class CostMeasurement {
 public:
  CostMeasurement(const Experts& experts, Team& team)
      : experts_(experts), team_(team), counts_(cells(experts.num_local())) {
    reserve(std::max<int64_t>(kMostRowsOfARun, experts.num_local()));
  }

  // The time of one expert with so many rows, out of about `seconds` of experts that take
  // `expected` each.
  double measure(int64_t rows, double expected, double seconds) {
    const int64_t slots = experts_.num_local();
    const auto fit = static_cast<int64_t>(std::clamp(seconds / expected, 1.0, 1e6));
    const int64_t used = std::min({slots, fit, std::max<int64_t>(1, kMostRowsOfARun / rows)});
    std::ranges::fill(counts_, 0);
    for (int64_t i = 0; i < used; ++i)
      counts_[cells((first_ + i) % slots)] = static_cast<int32_t>(rows);
    first_ = (first_ + used) % slots;
    // Batched rows have room for each slot, used or not.
    const int64_t total = (experts_.format() == Format::kBatched ? slots : used) * rows;
    reserve(total);
    return run(rows, total) / static_cast<double>(used);
  }

 private:
  Rows rows_of(Buffer& memory, int64_t rows, DType dtype) const {
    return {memory.data(), rows, experts_.hidden(), experts_.hidden(), dtype};
  }

  void reserve(int64_t rows) {
    if (rows <= std::ssize(at_)) return;
    x_ = Buffer(shape_bytes(experts_.dtype(), rows, experts_.hidden()));
    y_ = Buffer(shape_bytes(DType::kF32, rows, experts_.hidden()));
    scratch_ = Buffer(experts_.scratch_bytes(rows));
    std::ranges::fill(std::span(x_.data(), x_.bytes()), std::byte{0});
    std::ranges::fill(std::span(y_.data(), y_.bytes()), std::byte{0});
    const ConstRows x = rows_of(x_, rows, experts_.dtype());
    at_.clear();
    for (int64_t row = 0; row < rows; ++row) at_.push_back(x.slice(row, 1).data);
  }

  // Seconds of one run.
  double run(int64_t rows, int64_t total) {
    Tokens tokens{.format = experts_.format(),
                  .x = rows_of(x_, total, experts_.dtype()),
                  .weights = {},
                  .counts = counts_,
                  .capacity = experts_.format() == Format::kBatched ? rows : 0};
    if (experts_.format() == Format::kIndirect) tokens.at.x = std::span(at_).first(cells(total));
    const auto begin = SteadyClock::now();
    experts_.run(tokens, rows_of(y_, total, DType::kF32),
                 std::span(scratch_.data(), scratch_.bytes()), team_);
    return seconds_since(begin);
  }

  const Experts& experts_;
  Team& team_;
  Buffer x_, y_, scratch_;
  std::vector<const std::byte*> at_;  // [rows that there is memory for]
  std::vector<int32_t> counts_;       // [slots]
  int64_t first_ = 0;                 // the slot whose turn it is: its weights are coldest
};

// Rank 0's values become those of all ranks.
void from_rank_0(Communicator& comm, std::span<int64_t> values) {
  const std::vector<int64_t> mine(values.begin(), values.end());
  std::vector<int64_t> bytes_of_rank(cells(comm.size()));
  const auto sent =
      comm.rank() == 0 ? std::as_bytes(std::span(mine)) : std::span<const std::byte>{};
  Pending pending = comm.all_gather_v(sent, std::as_writable_bytes(values), bytes_of_rank);
  pending.wait();
  pending.wait_released();
}

CostModel model_of(const std::map<int64_t, double>& least) {
  std::vector<int64_t> rows;
  std::vector<double> seconds;
  for (const auto& [n, time] : least) {
    rows.push_back(n);
    seconds.push_back(time);
  }
  return cost_of_measured(rows, seconds);
}

}  // namespace

CostModel measure_cost(const Experts& experts, Team& team, const CostEffort& effort) {
  if (experts.num_local() == 0)
    throw InvalidArgument("a rank without experts can't measure what they cost");
  const auto begin = SteadyClock::now();
  CostMeasurement measurement(experts, team);
  std::map<int64_t, double> least;
  least[1] = measurement.measure(1, 1, 0);  // and warms up
  const double share = effort.seconds / (2 * std::size(kRows));
  for (int round = 0; round < 8; ++round) {
    bool any = false;
    for (const int64_t rows : kRows) {
      if (rows > effort.most_rows) continue;
      const double expected =
          std::max(1e-12, 1e-12 * static_cast<double>(model_of(least).time(rows)));
      const bool needed = round == 0 && (rows == 1 || rows == 16);
      if (!needed && seconds_since(begin) + std::max(share, expected) > effort.seconds) continue;
      any = true;
      const double time = measurement.measure(rows, expected, share);
      const auto [known, is_new] = least.try_emplace(rows, time);
      known->second = std::min(known->second, time);
    }
    if (!any) break;
  }
  return model_of(least);
}

CostModel broadcast_cost(Communicator& comm, const CostModel* cost) {
  std::vector<int64_t> mine;
  if (comm.rank() == 0) {
    if (cost == nullptr) throw InvalidArgument("rank 0 has no cost model to give");
    mine = {std::ssize(cost->points()), cost->wire_picoseconds()};
    for (const CostPoint& point : cost->points()) {
      mine.push_back(point.rows);
      mine.push_back(point.picoseconds);
    }
    mine.insert(mine.end(), cost->speeds().begin(), cost->speeds().end());
  }
  int64_t size = std::ssize(mine);
  from_rank_0(comm, std::span(&size, 1));
  mine.resize(cells(size));
  from_rank_0(comm, mine);
  std::vector<CostPoint> points(cells(mine[0]));
  auto value = mine.begin() + 2;
  for (CostPoint& point : points) {
    point.rows = *value++;
    point.picoseconds = *value++;
  }
  return CostModel(std::move(points), std::vector<int32_t>(value, mine.end()), mine[1]);
}

}  // namespace trimtab
