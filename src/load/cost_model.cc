// SPDX-License-Identifier: Apache-2.0
#include "trimtab/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/cat.h"
#include "base/checksum.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kMostRows = int64_t{1} << 40;
constexpr int32_t kMostSpeed = 16 * CostModel::kNominalSpeed;

// Times of so few rows are looked up: those of decode batches, in half of a core's first cache.
constexpr int64_t kFewRows = 1024;
// Parts of these times, each with an index into them.
constexpr int64_t kParts = 512;

void check(std::span<const CostPoint> points, std::span<const int32_t> speeds, int64_t wire) {
  if (points.size() < 2) throw InvalidArgument("a cost model needs at least one point");
  for (size_t i = 1; i < points.size(); ++i) {
    const CostPoint point = points[i];
    const CostPoint before = points[i - 1];
    if (point.rows <= before.rows || point.rows > kMostRows) {
      throw InvalidArgument(cat("cost point ", i - 1, " is at ", point.rows, " rows, expected ",
                                before.rows + 1, " to ", kMostRows));
    }
    if (point.picoseconds < std::max<int64_t>(before.picoseconds, 1) ||
        point.picoseconds > CostModel::kMostPicoseconds) {
      throw InvalidArgument(cat("cost point ", i - 1, " takes ", point.picoseconds,
                                " ps, expected ", std::max<int64_t>(before.picoseconds, 1), " to ",
                                CostModel::kMostPicoseconds));
    }
  }
  for (size_t r = 0; r < speeds.size(); ++r) {
    if (speeds[r] < 1 || speeds[r] > kMostSpeed) {
      throw InvalidArgument(
          cat("rank ", r, " has speed ", speeds[r], ", expected 1 to ", kMostSpeed));
    }
  }
  if (wire < 0 || wire > CostModel::kMostPicoseconds >> 16)
    throw InvalidArgument(cat("a row from another rank costs ", wire, " ps"));
}

std::vector<CostPoint> from_nothing(std::vector<CostPoint> points) {
  points.insert(points.begin(), CostPoint{});
  return points;
}

template <class Value>
uint64_t hash_of_values(std::span<const Value> values) {
  return checksum(std::as_bytes(values));
}

// For products and quotients that fit in 64 bits.
int64_t narrow(Wide value) {
  return static_cast<int64_t>(value);
}

}  // namespace

CostModel::CostModel(std::vector<CostPoint> points, std::vector<int32_t> speeds,
                     int64_t wire_picoseconds)
    : points_(from_nothing(std::move(points))),
      speeds_(std::move(speeds)),
      wire_picoseconds_(wire_picoseconds) {
  check(points_, speeds_, wire_picoseconds_);
  if (std::ranges::all_of(speeds_, [](int32_t speed) { return speed == kNominalSpeed; }))
    speeds_.clear();
  for (int64_t rows = 0; rows < kFewRows; ++rows) few_rows_.push_back(of_many(rows));
  while (few_rows_.back() >> part_bits_ >= kParts) ++part_bits_;
  for (int64_t part = 0; part <= kParts; ++part) {
    const auto at = std::ranges::lower_bound(few_rows_, part << part_bits_);
    below_part_.push_back(static_cast<int32_t>(at - few_rows_.begin()));
  }
  const CostPoint first = points_[1];
  proportional_ =
      speeds_.empty() && wire_picoseconds_ == 0 &&
      std::ranges::all_of(points_, [&](const CostPoint& point) {
        return Wide{point.picoseconds} * first.rows == Wide{first.picoseconds} * point.rows;
      });
  const uint64_t parts[] = {hash_of_values(std::span<const CostPoint>(points_)),
                            hash_of_values(std::span<const int32_t>(speeds_)),
                            static_cast<uint64_t>(wire_picoseconds_)};
  fingerprint_ = std::max<uint64_t>(1, hash_of_values(std::span<const uint64_t>(parts)));
}

int64_t CostModel::of_many(int64_t rows) const {
  const auto next = std::ranges::lower_bound(points_, rows, {}, &CostPoint::rows);
  if (next == points_.begin()) return 0;
  const auto end = next == points_.end() ? std::prev(next) : next;
  const auto begin = std::prev(end);
  const Wide time = begin->picoseconds + Wide{rows - begin->rows} *
                                             (end->picoseconds - begin->picoseconds) /
                                             (end->rows - begin->rows);
  return narrow(std::min<Wide>(time, kMostPicoseconds));
}

int64_t CostModel::rows_within(int64_t picoseconds) const {
  if (picoseconds < few_rows_[1]) return 0;
  if (picoseconds < few_rows_.back()) {
    const int64_t part = picoseconds >> part_bits_;
    const auto times = few_rows_.begin();
    return std::upper_bound(times + below_part_[part], times + below_part_[part + 1], picoseconds) -
           times - 1;
  }
  if (picoseconds >= kMostPicoseconds) return kMostRows;
  const auto next = std::ranges::upper_bound(points_, picoseconds, {}, &CostPoint::picoseconds);
  const auto end = next == points_.end() ? std::prev(next) : next;
  const auto begin = std::prev(end);
  const int64_t more = end->picoseconds - begin->picoseconds;
  if (more == 0) return kMostRows;
  const Wide rows =
      (Wide{picoseconds - begin->picoseconds + 1} * (end->rows - begin->rows) - 1) / more;
  return narrow(std::min<Wide>(begin->rows + rows, kMostRows));
}

int64_t CostModel::time_on_rank(int64_t work, int64_t rank) const {
  if (speeds_.empty()) return work;
  const int32_t speed = speeds_[rank];
  return narrow((Wide{work} * kNominalSpeed + speed - 1) / speed);
}

int64_t CostModel::work_within(int64_t picoseconds, int64_t rank) const {
  if (speeds_.empty()) return picoseconds;
  return narrow(Wide{picoseconds} * speeds_[rank] / kNominalSpeed);
}

CostModel cost_of_measured(std::span<const int64_t> rows, std::span<const double> seconds) {
  if (rows.size() != seconds.size()) {
    throw InvalidArgument(cat(seconds.size(), " times for ", rows.size(), " numbers of rows"));
  }
  std::vector<CostPoint> points;
  int64_t longest = 1;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!(seconds[i] >= 0 && seconds[i] * 1e12 <= static_cast<double>(CostModel::kMostPicoseconds)))
      throw InvalidArgument(cat(rows[i], " rows took ", seconds[i], " s"));
    longest = std::max<int64_t>(longest, std::llround(seconds[i] * 1e12));
    points.push_back({.rows = rows[i], .picoseconds = longest});
  }
  return CostModel(std::move(points));
}

}  // namespace trimtab
