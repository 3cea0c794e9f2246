// SPDX-License-Identifier: Apache-2.0
// The two products of an expert, or one matrix, alone: m rows at a time, another expert at every
// call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/experts/model_shape.h"
#include "bench/experts/paired.h"
#include "bench/experts/weight_dtype.h"

namespace trimtab::bench {

struct GemmRow {
  std::string shape;
  std::string_view gemm;  // gate_up, down or linear
  std::string_view dtype;
  int64_t m;
  Timing timing;
};

// What both measurements need. progress gets what is being done, now and then.
struct BenchContext {
  Team& team;
  Ceilings& ceilings;
  Effort effort;
  size_t cold_bytes;  // of weights that are cycled through
  std::function<void(const std::string&)> progress;
};

// Verifies each m, then times it. Throws Error when a result is wrong.
std::vector<GemmRow> bench_gemms(const std::string& shape, const WeightDType& dtype,
                                 const std::vector<int64_t>& m, const BenchContext& context);

}  // namespace trimtab::bench
