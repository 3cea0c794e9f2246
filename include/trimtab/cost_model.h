// SPDX-License-Identifier: Apache-2.0
// The time that an expert takes for a number of rows. With few rows an expert costs what reading
// its weights does, with many it costs their arithmetic; both follow from a few measured points.
// All values are integers, so that every rank computes the same from the same model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// One measured point: an expert with this many rows takes this time.
struct CostPoint {
  int64_t rows = 0;
  int64_t picoseconds = 0;
  bool operator==(const CostPoint&) const = default;
};

// Immutable; any number of threads may use it.
class CostModel {
 public:
  // The longest time of one expert, about 4.7 minutes: times of any layer can be added up.
  static constexpr int64_t kMostPicoseconds = int64_t{1} << 48;
  // The speed of a rank that takes exactly the times of the points.
  static constexpr int32_t kNominalSpeed = 1000;

  // points: rows ascend from 1 or more, times are above 0 and never fall. Between two points, and
  // from no rows at no time to the first, times are linear; behind the last one they go on as
  // between the last two. speeds: [ranks] each rank's speed in thousandths of the machine that was
  // measured; empty: all nominal. wire_picoseconds: what a row costs more that comes from another
  // rank. Throws InvalidArgument, with the values.
  explicit CostModel(std::vector<CostPoint> points, std::vector<int32_t> speeds = {},
                     int64_t wire_picoseconds = 0);
  // A row costs 1 whatever it meets: times are rows then.
  static CostModel of_rows() { return CostModel({{.rows = 1, .picoseconds = 1}}); }

  // In picoseconds at nominal speed; 0 for no rows, at most kMostPicoseconds.
  int64_t time(int64_t rows) const {
    return rows < std::ssize(few_rows_) ? few_rows_[rows] : of_many(rows);
  }
  // The most rows that take no more than this time; 0 where not even one does. At most 2^40.
  int64_t rows_within(int64_t picoseconds) const;
  // The time that a rank takes for work that would take `work` at nominal speed, rounded up.
  int64_t time_on_rank(int64_t work, int64_t rank) const;
  // The most work whose time_on_rank() is at most this.
  int64_t work_within(int64_t picoseconds, int64_t rank) const;

  // Do n rows cost n times what one does, on every rank? Then the level in time is that in rows.
  bool is_proportional() const { return proportional_; }
  bool has_speeds() const { return !speeds_.empty(); }
  std::span<const CostPoint> points() const { return std::span(points_).subspan(1); }
  std::span<const int32_t> speeds() const { return speeds_; }
  int64_t wire_picoseconds() const { return wire_picoseconds_; }
  // A hash of all values, by which ranks notice that their models differ; never 0.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  int64_t of_many(int64_t rows) const;

  std::vector<CostPoint> points_;  // begins with {0, 0}
  std::vector<int32_t> speeds_;
  int64_t wire_picoseconds_;
  std::vector<int64_t> few_rows_;  // the times of 0, 1, 2, ... rows
  // How many of few_rows_ are below 0, 1, 2, ... times 2^part_bits_: where to look for a time.
  std::vector<int32_t> below_part_;
  int part_bits_ = 0;
  bool proportional_ = false;
  uint64_t fingerprint_ = 0;
};

// A model from times as they were measured, in seconds: one time for each of `rows`. Where a time
// is below that of fewer rows, which only noise makes, it is taken as equal. Throws InvalidArgument
// as the model does.
CostModel cost_of_measured(std::span<const int64_t> rows, std::span<const double> seconds);

}  // namespace trimtab
