// SPDX-License-Identifier: Apache-2.0
#include "recordings/tables.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Reads one level of a nested list; depth counts from the outside.
class TableReader {
 public:
  TableReader(JsonReader& json, std::string_view what, size_t max_dims, int64_t max,
              IntTable& table)
      : json_(json), what_(what), max_dims_(max_dims), max_(max), table_(table) {}

  void read(size_t depth) {
    const int64_t at = json_.offset();
    json_.begin_array();
    bool leaves = false;
    int64_t length = 0;
    while (json_.next_element()) {
      const bool list = json_.peek() == '[';
      if (length++ == 0) leaves = start(depth, list);
      if (list == leaves)
        json_.fail(json_.offset(),
                   cat(what_, ": lists and numbers mixed, or lists of unequal depth"));
      if (list) {
        read(depth + 1);
      } else {
        table_.values.push_back(json_.integer(0, max_));
      }
    }
    if (length == 0) json_.fail(at, cat(what_, ": an empty list"));
    if (leaves) table_.row_at.push_back(at);
    int64_t& expected = table_.shape[depth];
    if (expected == 0) expected = length;
    if (expected != length)
      json_.fail(at, cat(what_, ": a list of ", length, " after lists of ", expected));
  }

 private:
  // Whether this level holds numbers; the first branch down decides for all.
  bool start(size_t depth, bool list) {
    if (depth == table_.shape.size()) {
      if (depth == max_dims_)
        json_.fail(json_.offset(), cat(what_, ": lists nested more than ", max_dims_, " deep"));
      table_.shape.push_back(0);
      if (!list) dims_ = depth + 1;
    }
    return depth + 1 == dims_;
  }

  JsonReader& json_;
  std::string_view what_;
  size_t max_dims_;
  int64_t max_;
  IntTable& table_;
  size_t dims_ = 0;
};

std::string shape_text(const Load& load) {
  return cat("[", load.num_steps, ", ", load.num_layers, ", ", load.num_experts, "]");
}

void check_option(const char* what, int64_t value, int64_t max) {
  if (value < 0 || value > max)
    throw InvalidArgument(cat(what, " ", value, ": must be 0 to ", max));
}

}  // namespace

std::vector<int> counted_layers(size_t layers) {
  std::vector<int> ids(layers);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<int64_t> counted_steps(size_t steps) {
  std::vector<int64_t> ids(steps);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

IntTable read_table(JsonReader& json, std::string_view what, size_t min_dims, size_t max_dims,
                    int64_t max) {
  IntTable table;
  table.at = json.offset();
  TableReader(json, what, max_dims, max, table).read(0);
  if (table.shape.size() < min_dims) {
    json.fail(table.at, cat(what, ": lists nested ", table.shape.size(), " deep; at least ",
                            min_dims, " expected"));
  }
  return table;
}

void check_dense(const std::string& file, size_t steps, size_t layers, int64_t experts,
                 size_t records) {
  const long double cells = static_cast<long double>(steps) * static_cast<long double>(layers) *
                            static_cast<long double>(experts);
  constexpr long double kFloor = 1 << 20;
  constexpr long double kCellsPerRecord = 1024;
  if (cells > kFloor + kCellsPerRecord * static_cast<long double>(records)) {
    throw FormatError(file, -1,
                      cat(records, " records for ", steps, " steps x ", layers, " layers x ",
                          experts, " experts: too few to be a recording; an id must be wrong"));
  }
}

Recording dense_recording(const std::string& file, std::span<const int64_t> shape,
                          std::vector<int64_t> counts, const RecordingOptions& options) {
  const bool stepped = shape.size() == 3;
  const int64_t layers = shape[stepped ? 1 : 0];
  const int64_t experts = shape[stepped ? 2 : 1];
  if (layers > kMaxLayerId + 1 || experts > kMaxExperts) {
    throw FormatError(file, -1,
                      cat(layers, " layers x ", experts, " experts: more than ", kMaxExperts));
  }
  check_option("num_experts", options.num_experts, kMaxExperts);
  if (options.num_experts != 0 && options.num_experts != experts) {
    throw FormatError(
        file, -1, cat("loads of ", experts, " experts; ", options.num_experts, " were asked for"));
  }
  Recording recording;
  recording.file = file;
  recording.load = {stepped ? shape[0] : 1, static_cast<int>(layers), static_cast<int>(experts),
                    std::move(counts)};
  recording.layer_ids = counted_layers(layers);
  recording.step_ids = counted_steps(recording.load.num_steps);
  return checked(std::move(recording));
}

Recording checked(Recording recording) {
  const Load& load = recording.load;
  int64_t sum = 0;
  for (size_t i = 0; i < load.counts.size(); ++i) {
    if (load.counts[i] > kMax - sum) {
      const auto cell = static_cast<int64_t>(i);
      const int64_t row = cell / load.num_experts;
      throw FormatError(recording.file, -1,
                        cat("the counts up to step ", recording.step_ids[row / load.num_layers],
                            ", layer ", recording.layer_ids[row % load.num_layers], ", expert ",
                            cell % load.num_experts, " sum to more than 63 bits hold"));
    }
    sum += load.counts[i];
  }
  return recording;
}

void check_writable(const Recording& recording) {
  const Load& load = recording.load;
  const bool positive = load.num_steps > 0 && load.num_layers > 0 && load.num_experts > 0;
  const auto cells = static_cast<long double>(load.num_steps) * load.num_layers * load.num_experts;
  if (!positive || cells != static_cast<long double>(load.counts.size()) ||
      recording.layer_ids.size() != static_cast<size_t>(load.num_layers) ||
      recording.step_ids.size() != static_cast<size_t>(load.num_steps)) {
    throw InvalidArgument(cat("loads of shape ", shape_text(load), " with ", load.counts.size(),
                              " counts, ", recording.step_ids.size(), " steps, ",
                              recording.layer_ids.size(), " layers"));
  }
  const auto negative =
      std::find_if(load.counts.begin(), load.counts.end(), [](int64_t n) { return n < 0; });
  if (negative != load.counts.end()) throw InvalidArgument(cat("loads: a count of ", *negative));
}

std::vector<int> slots_per_rank(const std::string& file, size_t slots,
                                const PlacementOptions& options) {
  if (!options.slots_per_rank.empty())
    return options.slots_per_rank;  // checked against the file by make_placement
  if (options.num_ranks < 1) {
    throw InvalidArgument(cat(
        file, ": ", slots, " slots a layer; the format does not say of how many ranks: give it"));
  }
  const auto ranks = static_cast<size_t>(options.num_ranks);
  if (slots % ranks != 0) {
    throw InvalidArgument(
        cat(file, ": ", slots, " slots a layer do not divide over ", ranks, " ranks"));
  }
  return std::vector<int>(ranks, static_cast<int>(slots / ranks));
}

void check_ranks(const std::string& file, const std::vector<int>& slots,
                 const PlacementOptions& options) {
  if (options.num_ranks != 0 && static_cast<size_t>(options.num_ranks) != slots.size()) {
    throw InvalidArgument(
        cat(file, ": a placement on ", slots.size(), " ranks; asked for ", options.num_ranks));
  }
  if (!options.slots_per_rank.empty() && options.slots_per_rank != slots) {
    throw InvalidArgument(cat(file, ": the slots of its ranks are not those asked for"));
  }
}

namespace {

int64_t highest_expert(const std::string& file, const SlotTable& table, size_t num_slots) {
  const auto highest = std::max_element(table.logical.begin(), table.logical.end());
  if (*highest >= kMaxExperts) {
    const size_t layer = static_cast<size_t>(highest - table.logical.begin()) / num_slots;
    throw FormatError(file, table.layer_at[layer],
                      cat("layer ", table.layer_ids[layer], ": expert ", *highest,
                          "; ids go up to ", kMaxExperts - 1));
  }
  return *highest;
}

}  // namespace

PlacementFile make_placement(const std::string& file, SlotTable table, std::vector<int> slots,
                             int64_t file_experts, const PlacementOptions& options) {
  check_option("num_experts", options.num_experts, kMaxExperts);
  if (options.num_experts != 0 && file_experts != 0 && options.num_experts != file_experts) {
    throw FormatError(
        file, -1,
        cat("a placement of ", file_experts, " experts; ", options.num_experts, " asked for"));
  }
  if (table.num_layers > static_cast<size_t>(kMaxLayerId)) {
    throw FormatError(file, -1, cat("a placement of ", table.num_layers, " layers"));
  }
  const size_t num_slots = table.logical.size() / table.num_layers;
  if (num_slots == 0) throw FormatError(file, -1, "a placement without slots");
  int64_t sum = 0;
  for (const int n : slots) sum += std::max(n, 0);
  if (static_cast<size_t>(sum) != num_slots) {
    throw InvalidArgument(cat(file, ": ", num_slots, " slots a layer; the ranks have ", sum));
  }
  int64_t experts = std::max<int64_t>(file_experts, options.num_experts);
  if (experts == 0) experts = highest_expert(file, table, num_slots) + 1;
  for (size_t layer = 0; layer < table.num_layers; ++layer) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(file, table.layer_at[layer],
                        cat("layer ", table.layer_ids[layer], ": ", what));
    };
    if (experts > static_cast<int64_t>(num_slots))
      fail(cat(num_slots, " slots for ", experts, " experts"));
    std::vector<bool> placed(experts);
    for (size_t slot = 0; slot < num_slots; ++slot) {
      const int64_t expert = table.logical[layer * num_slots + slot];
      if (expert < 0 || expert >= experts)
        fail(cat("slot ", slot, " holds expert ", expert, " of ", experts));
      placed[expert] = true;
    }
    const auto missing = std::find(placed.begin(), placed.end(), false);
    if (missing != placed.end()) fail(cat("no slot holds expert ", missing - placed.begin()));
  }
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

std::vector<int32_t> all_slots(const Placement& placement) {
  std::vector<int32_t> logical;
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const std::span<const int32_t> row = placement.logical(layer);
    logical.insert(logical.end(), row.begin(), row.end());
  }
  return logical;
}

void check_writable(const PlacementFile& placement) {
  if (placement.layer_ids.size() != static_cast<size_t>(placement.placement.num_layers())) {
    throw InvalidArgument(cat("a placement of ", placement.placement.num_layers(), " layers with ",
                              placement.layer_ids.size(), " layer ids"));
  }
}

Recording merge_recordings(std::span<const Recording> parts) {
  if (parts.empty()) throw InvalidArgument("no recordings to merge");
  Recording sum = parts.front();
  for (const Recording& part : parts) check_writable(part);
  for (const Recording& part : parts.subspan(1)) {
    const std::string both = cat("can't merge ", sum.file, " and ", part.file, ": ");
    if (shape_text(part.load) != shape_text(sum.load)) {
      throw InvalidArgument(cat(both, "[steps, layers, experts] are ", shape_text(sum.load),
                                " and ", shape_text(part.load)));
    }
    if (part.layer_ids != sum.layer_ids) throw InvalidArgument(both + "their layers differ");
    if (part.step_ids != sum.step_ids) throw InvalidArgument(both + "their steps differ");
    for (size_t i = 0; i < sum.load.counts.size(); ++i) {
      int64_t& count = sum.load.counts[i];
      if (part.load.counts[i] > kMax - count) throw InvalidArgument(both + "a sum exceeds 63 bits");
      count += part.load.counts[i];
    }
  }
  try {
    return checked(std::move(sum));
  } catch (const FormatError& error) {
    throw InvalidArgument(error.what());
  }
}

}  // namespace trimtab
