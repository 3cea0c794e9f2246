// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set that the kernels use.
#pragma once

#include <span>
#include <string_view>

#include "experts/gemm.h"

namespace trimtab {

// What this CPU (and its operating system) can run, best last; the first is always scalar.
std::span<const GemmKernels* const> available_kernels();

// One of `available` by name; the empty name is the last. Throws InvalidArgument with the choices.
const GemmKernels& select_kernels(std::string_view name,
                                  std::span<const GemmKernels* const> available);

// As TRIMTAB_ISA says, decided once.
const GemmKernels& chosen_kernels();

}  // namespace trimtab
