// SPDX-License-Identifier: Apache-2.0
// `trimtab bench` compares the speed of the kernels with what this machine can reach.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/experts/gemm_bench.h"
#include "bench/experts/layer_bench.h"
#include "bench/machine/ceilings.h"
#include "cli/bench/bench_options.h"

namespace trimtab::cli {

// Of one instruction set; GFLOP/s, GB/s.
struct IsaResult {
  std::string_view isa;
  const bench::DotLoop* dots[3];  // by DotKind
  double peaks[3];
  double stream;
};

struct BenchResult {
  std::string_view kernels;  // kernel_isa()
  int threads;
  std::vector<IsaResult> isas;  // those of the CPU, or the one that is compared with
  std::vector<bench::GemmRow> gemms;
  std::vector<bench::LayerRow> layers;
};

std::string bench_text_report(const BenchResult& result);
std::string bench_json_report(const BenchResult& result);

// Both write to standard output and progress to standard error. They throw Error, also when a
// result is wrong.
void bench_isa(const BenchOptions& options);
void bench_experts(const BenchOptions& options);

}  // namespace trimtab::cli
