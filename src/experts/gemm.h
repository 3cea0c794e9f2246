// SPDX-License-Identifier: Apache-2.0
// The table of kernels of one instruction set. This header, gemm_kernel.h and activation_kernel.h are compiled once for
// each instruction set, with its flags. Whatever they define must stay local to that file: an inline function or a
// template with external linkage would be merged by the linker, and a plain CPU could end up in AVX-512 code. So they
// include nothing but fixed-size integers, and all their templates live in unnamed namespaces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trimtab {

// All rows of x times one panel of weights. bf16 elements are uint16_t here.
struct PanelTask {
  const std::byte* panel;  // [k, width], 64-byte aligned; the columns from `cols` on (of each half) are zero
  const float* bias;       // [width], or null
  int64_t k;
  int width;  // GemmKernels::panel_width, or GemmKernels::lanes for a narrow last panel
  int cols;   // outputs of this panel

  const std::byte* x;  // [m, k]
  int64_t m;
  size_t x_stride;  // bytes from row to row, as out_stride

  std::byte* out;  // [m, cols]
  size_t out_stride;

  // Gated panels only. The panel's left half is gate, its right half up; `cols` counts pairs.
  int activation;  // an ActivationKind, as a number
  float alpha, limit;
};

// Each sum runs over k in order in one f32 accumulator, then the bias is added. So an output's bits depend on its row
// of x and its column of weights only, not on m, tiles or neighbours.
struct GemmKernels {
  using Run = void (*)(const PanelTask&) noexcept;

  const char* isa;
  int lanes;         // floats of one vector register: the width of narrow panels
  int panel_width;   // a whole number of pairs of vectors
  Run linear[2][2];  // [weights are bf16][x is bf16]; out: f32
  Run gated[2][2];   // the same; out has the type of the weights
};

// Plain C++: any CPU, and what the others are compared with. Multiplies and adds round separately.
extern const GemmKernels kScalarKernels;
#if defined(__x86_64__)
extern const GemmKernels kAvx2Kernels;    // with FMA
extern const GemmKernels kAvx512Kernels;  // F, BW, DQ, VL
#endif

// The exact (erf) gelu: one baseline function for all instruction sets.
float gelu(float x) noexcept;

}  // namespace trimtab
