// SPDX-License-Identifier: Apache-2.0
#include "trimtab/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

void check_sizes(int num_layers, int num_experts, int num_ranks) {
  if (num_layers < 1 || num_experts < 1 || num_ranks < 1) {
    throw InvalidArgument(cat("placement: ", num_layers, " layers, ", num_experts, " experts, ",
                              num_ranks, " ranks; each must be at least 1"));
  }
}

std::vector<int32_t> running_sum(const std::vector<int>& slots_per_rank) {
  std::vector<int32_t> first(1, 0);
  int64_t sum = 0;
  for (size_t r = 0; r < slots_per_rank.size(); ++r) {
    if (slots_per_rank[r] < 0) {
      throw InvalidArgument(cat("placement: rank ", r, " has ", slots_per_rank[r], " slots"));
    }
    sum += slots_per_rank[r];
    if (sum > std::numeric_limits<int32_t>::max()) {
      throw InvalidArgument(
          cat("placement: ", sum, " slots up to rank ", r, ", more than 32 bits number"));
    }
    first.push_back(static_cast<int32_t>(sum));
  }
  return first;
}

void check_layer(int layer, std::span<const int32_t> logical, int num_experts) {
  std::vector<bool> placed(num_experts);
  for (size_t s = 0; s < logical.size(); ++s) {
    if (logical[s] < 0 || logical[s] >= num_experts) {
      throw InvalidArgument(cat("placement: layer ", layer, " slot ", s, " holds expert ",
                                logical[s], " of ", num_experts));
    }
    placed[logical[s]] = true;
  }
  const auto missing = std::find(placed.begin(), placed.end(), false);
  if (missing != placed.end()) {
    throw InvalidArgument(
        cat("placement: layer ", layer, " has no slot for expert ", missing - placed.begin()));
  }
}

void check_range(const char* what, int value, int end) {
  if (value < 0 || value >= end)
    throw InvalidArgument(cat("placement: ", what, " ", value, " of ", end));
}

}  // namespace

Placement::Placement(int num_layers, int num_experts, std::vector<int> slots_per_rank,
                     std::vector<int32_t> logical, uint64_t version)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      first_slot_(running_sum(slots_per_rank)),
      logical_(std::move(logical)),
      version_(version) {
  check_sizes(num_layers, num_experts, num_ranks());
  if (logical_.size() != cells(num_layers, num_slots())) {
    throw InvalidArgument(cat("placement: ", logical_.size(), " entries for ", num_layers,
                              " layers of ", num_slots(), " slots"));
  }
  for (int l = 0; l < num_layers; ++l) check_layer(l, this->logical(l), num_experts);
}

Placement Placement::with(std::vector<int32_t> logical, uint64_t version) const {
  std::vector<int> slots_per_rank;
  for (int r = 0; r < num_ranks(); ++r) slots_per_rank.push_back(slots_of_rank(r));
  return {num_layers_, num_experts_, std::move(slots_per_rank), std::move(logical), version};
}

Placement Placement::linear(int num_layers, int num_experts, int num_ranks) {
  check_sizes(num_layers, num_experts, num_ranks);
  std::vector<int> slots_per_rank;
  for (int r = 0; r < num_ranks; ++r) {
    slots_per_rank.push_back(num_experts / num_ranks + (r < num_experts % num_ranks ? 1 : 0));
  }
  std::vector<int32_t> logical;
  logical.reserve(cells(num_layers, num_experts));
  for (int l = 0; l < num_layers; ++l) {
    for (int32_t e = 0; e < num_experts; ++e) logical.push_back(e);
  }
  return Placement(num_layers, num_experts, std::move(slots_per_rank), std::move(logical));
}

int Placement::rank_of_slot(int slot) const {
  check_range("slot", slot, num_slots());
  return SlotRanges(first_slot_).rank_of(slot);
}

std::span<const int32_t> Placement::logical(int layer) const {
  check_range("layer", layer, num_layers_);
  return std::span(logical_).subspan(cells(layer, num_slots()), cells(num_slots()));
}

std::vector<int32_t> Placement::log2phy(int layer, int rank) const {
  check_range("rank", rank, num_ranks());
  const std::span<const int32_t> experts = logical(layer);
  std::vector<std::vector<int32_t>> slots_of(num_experts_);
  for (int32_t s = 0; s < num_slots(); ++s) slots_of[experts[s]].push_back(s);
  std::vector<int32_t> chosen;
  chosen.reserve(slots_of.size());
  for (int e = 0; e < num_experts_; ++e) {
    const std::vector<int32_t>& slots = slots_of[e];
    const auto own = std::lower_bound(slots.begin(), slots.end(), first_slot(rank));
    if (own != slots.end() && *own < first_slot(rank + 1)) {
      chosen.push_back(*own);
      continue;
    }
    // The number of ranks before this one that are dealt a slot, too.
    int64_t turn = rank;
    int owner = -1;
    for (auto s = slots.begin(); s != own; ++s) {
      const int r = rank_of_slot(*s);
      if (r != owner) --turn;
      owner = r;
    }
    chosen.push_back(slots[(turn + e) % std::ssize(slots)]);
  }
  return chosen;
}

}  // namespace trimtab
