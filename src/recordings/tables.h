// SPDX-License-Identifier: Apache-2.0
// What all readers end in: dense tables that are checked before they become a Load or a Placement.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recordings/json_reader.h"
#include "trimtab/recordings.h"

namespace trimtab {

// Far above any model; keeps an id of a broken file from becoming a size.
constexpr int64_t kMaxExperts = int64_t{1} << 20;
constexpr int64_t kMaxLayerId = (int64_t{1} << 20) - 1;

inline std::string_view text_of(std::span<const std::byte> image) {
  return {reinterpret_cast<const char*>(image.data()), image.size()};
}

// 0, 1, ... as the ids of layers or steps that have none.
std::vector<int> counted_layers(size_t layers);
std::vector<int64_t> counted_steps(size_t steps);

// A nested list of whole numbers with equally long lists on each level.
struct IntTable {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;  // row-major
  std::vector<int64_t> row_at;  // byte of each innermost list
  int64_t at = 0;               // byte of the whole
};
// what: names the table in errors.
IntTable read_table(JsonReader& json, std::string_view what, size_t min_dims, size_t max_dims,
                    int64_t max);

// Appends [a, b] and [[a, b], [c, d]]; rows: how many equal parts values has.
template <class Int>
void append_list(std::string& out, std::span<const Int> values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(values[i]);
  }
  out += ']';
}
template <class Int>
void append_rows(std::string& out, std::span<const Int> values, size_t rows) {
  const size_t length = values.size() / rows;
  out += '[';
  for (size_t i = 0; i < rows; ++i) {
    if (i > 0) out += ",\n  ";
    append_list(out, values.subspan(i * length, length));
  }
  out += ']';
}

// Throws FormatError when a dense [steps, layers, experts] would be out of proportion to the
// records that a sparse file has for it.
void check_dense(const std::string& file, size_t steps, size_t layers, int64_t experts,
                 size_t records);

// A [layers, experts] or [steps, layers, experts] table as a recording. Throws FormatError when it
// has more experts than options say or sums to more than int64.
Recording dense_recording(const std::string& file, std::span<const int64_t> shape,
                          std::vector<int64_t> counts, const RecordingOptions& options);
// What holds for every recording; returns it.
Recording checked(Recording recording);

// Counts as written: shape and ids as they must be.
void check_writable(const Recording& recording);

// The rows of a placement before they are checked.
struct SlotTable {
  size_t num_layers = 0;
  std::vector<int64_t> logical;   // [layers, slots]
  std::vector<int64_t> layer_at;  // [layers]: byte of each layer, for errors
  std::vector<int> layer_ids;     // [layers]
};
// options' ranks for a file that does not tell them.
std::vector<int> slots_per_rank(const std::string& file, size_t slots,
                                const PlacementOptions& options);
// Throws InvalidArgument when options name other ranks than the file does.
void check_ranks(const std::string& file, const std::vector<int>& slots_per_rank,
                 const PlacementOptions& options);
// file_experts: as the file says, 0 when it does not.
PlacementFile make_placement(const std::string& file, SlotTable table,
                             std::vector<int> slots_per_rank, int64_t file_experts,
                             const PlacementOptions& options);
// Slots of every rank. Throws InvalidArgument when they differ.
int equal_slots(const Placement& placement, std::string_view format);
// [layers, slots]
std::vector<int32_t> all_slots(const Placement& placement);
void check_writable(const PlacementFile& placement);

}  // namespace trimtab
