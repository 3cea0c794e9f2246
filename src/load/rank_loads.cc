// SPDX-License-Identifier: Apache-2.0
#include "load/rank_loads.h"

#include <algorithm>

namespace trimtab {

std::vector<int32_t> replica_counts(std::span<const int32_t> map, int num_experts) {
  std::vector<int32_t> counts(num_experts, 0);
  for (const int32_t e : map) ++counts[e];
  return counts;
}

int64_t duplicate_slots(std::span<const int32_t> map, std::span<const int32_t> first_slots) {
  int64_t duplicates = 0;
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    const auto first = map.begin() + first_slots[r];
    const auto last = map.begin() + first_slots[r + 1];
    for (auto slot = first; slot != last; ++slot)
      duplicates += std::find(first, slot, *slot) != slot ? 1 : 0;
  }
  return duplicates;
}

std::vector<int64_t> sum_of_steps(const Load& load, int layer, int64_t first, int64_t last) {
  std::vector<int64_t> sum(load.num_experts, 0);
  for (int64_t step = first; step < last; ++step) {
    const std::span<const int64_t> counts = load.at(step, layer);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += counts[e];
  }
  return sum;
}

namespace {

// Adds the loads of one step's experts, already divided by their copies, to the ranks.
void add_up(std::span<const int32_t> map, std::span<const int32_t> first_slots,
            std::span<const double> per_replica, std::span<double> loads) {
  for (size_t r = 0; r < loads.size(); ++r) {
    double sum = 0;
    for (int32_t s = first_slots[r]; s < first_slots[r + 1]; ++s) {
      sum += per_replica[static_cast<size_t>(map[s])];
    }
    loads[r] = sum;
  }
}

}  // namespace

std::vector<double> rank_loads(std::span<const int32_t> map, std::span<const int32_t> first_slots,
                               std::span<const int64_t> expert_load) {
  const std::vector<int32_t> copies = replica_counts(map, static_cast<int>(expert_load.size()));
  std::vector<double> per_replica(expert_load.size());
  for (size_t e = 0; e < per_replica.size(); ++e) {
    per_replica[e] = static_cast<double>(expert_load[e]) / static_cast<double>(copies[e]);
  }
  std::vector<double> loads(first_slots.size() - 1);
  add_up(map, first_slots, per_replica, loads);
  return loads;
}

double peak_to_mean(std::span<const double> loads) {
  double sum = 0;
  double peak = 0;
  for (const double load : loads) {
    sum += load;
    peak = std::max(peak, load);
  }
  return sum > 0 ? peak * static_cast<double>(loads.size()) / sum : 1.0;
}

std::vector<double> step_pars(std::span<const int32_t> map, std::span<const int32_t> first_slots,
                              const Load& load, int layer) {
  const std::vector<int32_t> copies = replica_counts(map, load.num_experts);
  std::vector<double> inverse(copies.size());
  for (size_t e = 0; e < inverse.size(); ++e) inverse[e] = 1.0 / static_cast<double>(copies[e]);
  std::vector<double> per_replica(copies.size());
  std::vector<double> loads(first_slots.size() - 1);
  std::vector<double> result(load.num_steps);
  for (size_t t = 0; t < result.size(); ++t) {
    const std::span<const int64_t> counts = load.at(static_cast<int64_t>(t), layer);
    for (size_t e = 0; e < inverse.size(); ++e)
      per_replica[e] = static_cast<double>(counts[e]) * inverse[e];
    add_up(map, first_slots, per_replica, loads);
    result[t] = peak_to_mean(loads);
  }
  return result;
}

}  // namespace trimtab
