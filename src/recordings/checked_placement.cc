// SPDX-License-Identifier: Apache-2.0
#include "recordings/checked_placement.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Checks layer after layer that every slot holds an expert and every expert has a slot.
void check_slots(const std::string& file, const SlotTable& table, int64_t num_slots,
                 int64_t num_experts) {
  const Table rows(table.logical, num_slots);
  for (int64_t layer = 0; layer < table.num_layers; ++layer) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(file, table.layer_at[layer],
                        cat("layer ", table.layer_ids[layer], ": ", what));
    };
    if (num_experts > num_slots) fail(cat(num_slots, " slots for ", num_experts, " experts"));
    std::vector<bool> placed(num_experts);
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      const int64_t expert = rows(layer, slot);
      if (expert < 0 || expert >= num_experts)
        fail(cat("slot ", slot, " holds expert ", expert, " of ", num_experts));
      placed[expert] = true;
    }
    const auto missing = std::find(placed.begin(), placed.end(), false);
    if (missing != placed.end()) fail(cat("no slot holds expert ", missing - placed.begin()));
  }
}

// The highest id + 1.
int64_t experts_in(const std::string& file, const SlotTable& table, int64_t num_slots) {
  const auto highest = std::max_element(table.logical.begin(), table.logical.end());
  if (*highest > kMaxExpertId) {
    const int64_t layer = (highest - table.logical.begin()) / num_slots;
    throw FormatError(file, table.layer_at[layer],
                      cat("layer ", table.layer_ids[layer], ": expert ", *highest,
                          "; ids go up to ", kMaxExpertId));
  }
  return *highest + 1;
}

}  // namespace

SlotTable slot_table(const std::string& file, IntTable table, std::vector<int> layer_ids) {
  const int64_t layers = table.shape[0];
  if (layer_ids.empty()) layer_ids = counted_ids<int>(layers);
  if (std::ssize(layer_ids) != layers) {
    throw FormatError(file, table.at, cat(layer_ids.size(), " layer_ids for ", layers, " layers"));
  }
  return {layers, std::move(table.values), std::move(table.row_at), std::move(layer_ids)};
}

std::vector<int> slots_per_rank(const std::string& file, int64_t slots,
                                const PlacementOptions& options) {
  if (!options.slots_per_rank.empty())
    return options.slots_per_rank;  // checked against the file by make_placement
  const int ranks = options.num_ranks;
  if (ranks < 1) {
    throw InvalidArgument(cat(
        file, ": ", slots, " slots a layer; the format does not say of how many ranks: give it"));
  }
  if (slots % ranks != 0) {
    throw InvalidArgument(
        cat(file, ": ", slots, " slots a layer do not divide over ", ranks, " ranks"));
  }
  return std::vector<int>(ranks, static_cast<int>(slots / ranks));
}

void check_ranks(const std::string& file, const std::vector<int>& slots,
                 const PlacementOptions& options) {
  if (options.num_ranks != 0 && options.num_ranks != std::ssize(slots)) {
    throw InvalidArgument(
        cat(file, ": a placement on ", slots.size(), " ranks; asked for ", options.num_ranks));
  }
  if (!options.slots_per_rank.empty() && options.slots_per_rank != slots) {
    throw InvalidArgument(cat(file, ": the slots of its ranks are not those asked for"));
  }
}

PlacementFile make_placement(const std::string& file, SlotTable table, std::vector<int> slots,
                             int64_t file_experts, const PlacementOptions& options) {
  check_option("num_experts", options.num_experts, kMaxExperts);
  if (options.num_experts != 0 && file_experts != 0 && options.num_experts != file_experts) {
    throw FormatError(
        file, -1,
        cat("a placement of ", file_experts, " experts; ", options.num_experts, " asked for"));
  }
  if (table.num_layers > kMaxLayerId) {
    throw FormatError(file, -1, cat("a placement of ", table.num_layers, " layers"));
  }
  const int64_t num_slots = std::ssize(table.logical) / table.num_layers;
  if (num_slots == 0) throw FormatError(file, -1, "a placement without slots");
  int64_t sum = 0;
  for (const int n : slots) sum += std::max(n, 0);
  if (sum != num_slots) {
    throw InvalidArgument(cat(file, ": ", num_slots, " slots a layer; the ranks have ", sum));
  }
  int64_t experts = std::max<int64_t>(file_experts, options.num_experts);
  if (experts == 0) experts = experts_in(file, table, num_slots);
  check_slots(file, table, num_slots, experts);
  std::vector<int32_t> logical(table.logical.begin(), table.logical.end());
  return {Placement(static_cast<int>(table.num_layers), static_cast<int>(experts), std::move(slots),
                    std::move(logical)),
          std::move(table.layer_ids),
          {}};
}

int equal_slots(const Placement& placement, std::string_view format) {
  const int slots = placement.slots_of_rank(0);
  for (int rank = 1; rank < placement.num_ranks(); ++rank) {
    if (placement.slots_of_rank(rank) != slots) {
      throw InvalidArgument(cat(format, " has equal slots on all ranks; rank 0 has ", slots,
                                ", rank ", rank, " has ", placement.slots_of_rank(rank)));
    }
  }
  return slots;
}

Table<const int32_t> slot_rows(const Placement& placement) {
  return {placement.logical(), placement.num_slots()};
}

void check_writable(const PlacementFile& placement) {
  if (std::ssize(placement.layer_ids) != placement.placement.num_layers()) {
    throw InvalidArgument(cat("a placement of ", placement.placement.num_layers(), " layers with ",
                              placement.layer_ids.size(), " layer ids"));
  }
}

}  // namespace trimtab
