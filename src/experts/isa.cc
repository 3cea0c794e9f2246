// SPDX-License-Identifier: Apache-2.0
#include "experts/isa.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {
namespace {

std::vector<const GemmKernels*> detect() {
  std::vector<const GemmKernels*> found = {&kScalarKernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) found.push_back(&kAvx2Kernels);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    found.push_back(&kAvx512Kernels);
  }
#endif
  return found;
}

}  // namespace

std::span<const GemmKernels* const> available_kernels() {
  static const std::vector<const GemmKernels*> found = detect();
  return found;
}

const GemmKernels& select_kernels(std::string_view name, std::span<const GemmKernels* const> available) {
  if (name.empty()) return *available.back();
  std::string names;
  for (const GemmKernels* kernels : available) {
    if (name == kernels->isa) return *kernels;
    names += cat(names.empty() ? "" : ", ", kernels->isa);
  }
  throw InvalidArgument(
      cat("TRIMTAB_ISA=", name, ": choose one of scalar, avx2, avx512; this build on this CPU has ", names));
}

const GemmKernels& chosen_kernels() {
  static const GemmKernels& chosen = []() -> const GemmKernels& {
    const char* name = std::getenv("TRIMTAB_ISA");
    return select_kernels(name == nullptr ? "" : name, available_kernels());
  }();
  return chosen;
}

std::string_view kernel_isa() {
  return chosen_kernels().isa;
}

}  // namespace trimtab
