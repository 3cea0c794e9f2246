// SPDX-License-Identifier: Apache-2.0
// Files of measured costs: what an expert takes for a number of rows, for each model, weight
// format, instruction set and number of threads that was measured. `trimtab bench experts
// --cost-out` writes them; docs/formats.md has the format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/cost_model.h"

namespace trimtab {

// What was measured, and how.
struct MeasuredCost {
  std::string shape;   // the model's name, for people
  int64_t hidden = 0;  // sizes of an expert
  int64_t intermediate = 0;
  std::string weights;  // the WeightFormat by name
  std::string isa;      // as kernel_isa()
  int threads = 1;      // of the team
  CostModel cost;
};

// Throws FormatError with the file and the byte where it is not what docs/formats.md says: an
// unknown key, another version, points that no CostModel takes.
std::vector<MeasuredCost> parse_costs(std::string_view text, const std::string& file);
// As above; Error when the file can't be read.
std::vector<MeasuredCost> read_costs(const std::string& path);

std::string serialize_costs(std::span<const MeasuredCost> costs);
// Writes a new file that replaces path when it is complete. Throws Error on I/O failure.
void write_costs(const std::string& path, std::span<const MeasuredCost> costs);

// What a run needs a cost of.
struct WantedCost {
  int64_t hidden = 0, intermediate = 0;
  std::string weights, isa;
  int threads = 1;
};
// The one that was measured for it. Throws InvalidArgument with what the file has when none was.
// file: for the error.
const MeasuredCost& find_cost(std::span<const MeasuredCost> costs, const WantedCost& wanted,
                              const std::string& file);

}  // namespace trimtab
