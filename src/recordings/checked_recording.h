// SPDX-License-Identifier: Apache-2.0
// The last step of every reader of loads, and the first of every writer: the checks that hold for
// all formats.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trimtab/recordings.h"

namespace trimtab {

// Loads of 0 tokens.
Load zero_load(int64_t num_steps, int64_t num_layers, int64_t num_experts);

// Throws FormatError when [steps, layers, experts] cells would be out of proportion to the records
// that a sparse file has for them.
void check_dense(const std::string& file, int64_t steps, int64_t layers, int64_t experts,
                 int64_t records);

// A [layers, experts] or [steps, layers, experts] table as a recording. Throws FormatError when the
// options ask for another number of experts, or when the counts sum to more than int64.
Recording dense_recording(const std::string& file, std::span<const int64_t> shape,
                          std::vector<int64_t> counts, const RecordingOptions& options);

// Returns the recording. Throws FormatError when its counts sum to more than int64.
Recording checked(Recording recording);

// Throws InvalidArgument when counts, layers and steps do not fit the shape, or a count is
// negative.
void check_writable(const Recording& recording);

// "[[a, b], [c, d]]" of each step, with a comma between steps, as JSON has [steps, layers,
// experts].
std::string step_rows(const Load& load);

// Throws InvalidArgument for an option outside [0, max].
void check_option(const char* what, int64_t value, int64_t max);

}  // namespace trimtab
