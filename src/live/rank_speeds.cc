// SPDX-License-Identifier: Apache-2.0
#include "live/rank_speeds.h"

#include <algorithm>
#include <cmath>

namespace trimtab {
namespace {

bool differ(std::span<const double> one, std::span<const double> other) {
  constexpr double kClose = 1.1;
  for (size_t r = 0; r < one.size(); ++r) {
    if (std::max(one[r], other[r]) > kClose * std::min(one[r], other[r])) return true;
  }
  return false;
}

void relate_to_fastest(std::vector<double>& speeds) {
  const double fastest = std::ranges::max(speeds);
  for (double& speed : speeds) speed /= fastest;
}

std::shared_ptr<const CostModel> with_speeds(const CostModel& cost, std::vector<int32_t> speeds) {
  const auto points = cost.points();
  return std::make_shared<const CostModel>(std::vector(points.begin(), points.end()),
                                           std::move(speeds), cost.wire_picoseconds());
}

}  // namespace

std::optional<std::vector<int32_t>> RankSpeeds::take(std::span<const RankTime> window) {
  std::vector<double> speeds;
  for (const RankTime& time : window) {
    if (time.nominal <= 0 || time.measured <= 0) return std::nullopt;
    speeds.push_back(static_cast<double>(time.nominal) / static_cast<double>(time.measured));
  }
  relate_to_fastest(speeds);
  if (!differ(speeds, in_use_)) {
    last_.clear();
    return std::nullopt;
  }
  if (last_.empty() || differ(speeds, last_)) {
    last_ = std::move(speeds);
    return std::nullopt;
  }
  for (size_t r = 0; r < speeds.size(); ++r) speeds[r] = (speeds[r] + last_[r]) / 2;
  relate_to_fastest(speeds);
  last_.clear();
  const std::vector<double> equal(speeds.size(), 1.0);
  in_use_ = differ(speeds, equal) ? std::move(speeds) : equal;
  std::vector<int32_t> thousandths;
  for (const double speed : in_use_) {
    thousandths.push_back(
        std::max(1, static_cast<int32_t>(std::lround(speed * CostModel::kNominalSpeed))));
  }
  return thousandths;
}

CostInUse::CostInUse(std::shared_ptr<const CostModel> given, int64_t num_ranks, bool measures)
    : now_(std::move(given)),
      measures_(measures && now_ && !now_->is_proportional() && !now_->has_speeds()),
      speeds_(num_ranks) {}

void CostInUse::take(std::span<const RankTime> window) {
  if (!measures_) return;
  if (auto speeds = speeds_.take(window)) next_ = with_speeds(*now_, *std::move(speeds));
}

std::vector<int32_t> CostInUse::to_tell() const {
  if (!next_) return {};
  // A model whose ranks are equally fast keeps no speeds.
  if (!next_->has_speeds())
    return std::vector<int32_t>(speeds_.num_ranks(), CostModel::kNominalSpeed);
  return {next_->speeds().begin(), next_->speeds().end()};
}

void CostInUse::use(std::span<const int32_t> speeds) {
  now_ = with_speeds(*now_, {speeds.begin(), speeds.end()});
  next_ = nullptr;
}

}  // namespace trimtab
