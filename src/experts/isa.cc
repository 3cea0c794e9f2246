// SPDX-License-Identifier: Apache-2.0
#include "experts/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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
  // The compiler has no name for AVX-VNNI in __builtin_cpu_supports: leaf 7.1, EAX bit 4.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2) found.push_back(&kAvx2Kernels);
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (avx2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 16U) != 0) {
    found.push_back(&kAvx2VnniKernels);
  }
  if (!avx2 || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return found;
  }
  found.push_back(&kAvx512Kernels);
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512vbmi")) {
    found.push_back(&kAvx512Bf16Kernels);
  }
#elif defined(__aarch64__)
  found.push_back(&kNeonKernels);
#if defined(__linux__)
  const unsigned long features = getauxval(AT_HWCAP2);
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return found;
  found.push_back(&kNeonDotprodKernels);
  if ((features & HWCAP2_BF16) != 0 && (features & HWCAP2_I8MM) != 0)
    found.push_back(&kNeonBf16Kernels);
#endif
#endif
  return found;
}

}  // namespace

std::span<const GemmKernels* const> available_kernels() {
  static const std::vector<const GemmKernels*> found = detect();
  return found;
}

const GemmKernels& select_kernels(std::string_view name,
                                  std::span<const GemmKernels* const> available) {
  if (name.empty()) return *available.back();
  std::string names;
  for (const GemmKernels* kernels : available) {
    if (name == kernels->isa) return *kernels;
    names += cat(names.empty() ? "" : ", ", kernels->isa);
  }
  throw InvalidArgument(
      cat("TRIMTAB_ISA=", name,
          ": choose one of scalar, avx2, avx2_vnni, avx512, avx512_bf16, neon, neon_dotprod, "
          "neon_bf16; this build on this CPU has ",
          names));
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
