// SPDX-License-Identifier: Apache-2.0
// The table of kernels of one instruction set. This header and the *_kernel.h, avx*.h and
// dot_products.h beside it are compiled once for each instruction set, with its flags. Whatever
// they define must stay local to that file: an inline function or a template with external linkage
// would be merged by the linker, and a plain CPU could end up in AVX-512 code. So they include
// nothing but fixed-size integers, and all their templates live in unnamed namespaces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trimtab {

// The kinds of products, by the types of weights and rows. A row of x is read in steps of 4 bytes
// (8 for kBF16F32), and a panel holds the weights of one step for `width` outputs side by side, so
// that one load of weights meets one broadcast of x.
enum Product : int {
  kF32Product,      // f32 weights, f32 rows: a step is 1 input
  kF16Product,      // f16 weights, f32 rows: 1
  kBF16F32Product,  // bf16 weights, f32 rows: 2
  kBF16Product,     // bf16 weights, bf16 rows: 2
  kInt8Product,     // u8 weights, s8 rows: 4
  kInt4Product,  // u4 weights, s8 rows: 4; the steps 2i and 2i + 1 share bytes (low, high nibble)
  kMX8Product,   // e4m3 weights with an e8m0 scale per 32, bf16 rows: 2; bytes in the order of
                 // dot_products.h
  kMX4Product,   // e2m1 weights with an e8m0 scale per 32, bf16 rows: 2; bytes as kMX8, nibbles as
                 // kInt4
  kFP8Product,   // e4m3 weights with an f32 scale per 128, bf16 rows: 2; bytes as kMX8
  kInt4BF16Product,  // u4 weights with an f32 scale and a zero point per group, bf16 rows: 2; the
                     // steps 2i and 2i + 1 share words in the order of dot_products.h
  kInt8BF16Product,  // u8 weights with an f32 scale and a zero point per group, bf16 rows: 2; bytes
                     // in the order of dot_products.h
  kBF16GroupProduct,  // what these two and kFP8 become when they are unpacked: bf16 weights with an
                      // f32 scale per group
  kNumProducts
};

// All rows of x, cut into tiles, times one panel of weights.
struct PanelTask {
  // Weights, 64-byte aligned: [steps, width] pieces as above. The columns from `cols` on (of each
  // half) are zero.
  const std::byte* panel;
  const std::byte* next_panel;  // the panel to fetch into L2 meanwhile, as it is read next; or null
  size_t next_bytes;
  int64_t steps;
  int64_t group_steps;  // the steps of a group, which is summed by itself, where there are scales
  int64_t groups_of_scale;  // the groups, one after the other, that share a scale
  // kMX8, kMX4: e8m0 [scales, width]; others: f32 [scales, width].
  const std::byte* weight_scales;
  // Integers: the weight that stands for 0; one for all, or [scales, width] if not null, as int32
  // for kInt8 and kInt4, as uint8 for kInt8BF16 and kInt4BF16.
  int zero;
  const std::byte* zeros;
  const float* bias;  // [width], or null
  int cols;           // outputs of this panel; pairs if gated

  // Rows of x. Packed: tiles as tile_first() cuts them, max_rows[product] at most, each [steps,
  // rows of the tile].
  const std::byte* x;
  int64_t m;
  size_t x_stride;               // bytes from row to row, also if packed
  const std::byte* const* rows;  // [m] where each row is, or null: at x; never if packed
  bool packed;
  const float* x_scales;  // kInt8, kInt4: [m]
  const int32_t* x_sums;  // kInt8, kInt4: [m, groups] sums of the row's values in each group

  std::byte* out;     // [m, cols]
  size_t out_stride;  // bytes from row to row
  bool out_bf16;      // else f32

  // Gated panels only: the panel's left half is gate, its right half up.
  int activation;  // an ActivationKind, as a number
  float alpha, limit, beta;
};

// Each sum runs over the inputs in order in one accumulator (integers and kFP8: in one for each
// group, the groups' scaled sums being added up in f32 in order), then the bias is added. So an
// output's bits depend on its row of x and its column of weights only, not on m, tiles or
// neighbours, nor on whether rows or weights were packed or unpacked on the way.
struct GemmKernels {
  using Run = void (*)(const PanelTask&) noexcept;
  // Expands a panel of kInt4 into one of kInt8, of kMX8 or kMX4 into one of kBF16, of kFP8,
  // kInt4BF16 or kInt8BF16 into one of kBF16Group.
  using Unpack = void (*)(const PanelTask&, std::byte* out) noexcept;

  const char* isa;
  int width;                   // outputs of a panel: two vectors
  int max_rows[kNumProducts];  // the most rows of a tile of packed rows
  // The most rows that weights are decoded for on their way to the registers. More rows, or 0:
  // unpack first.
  int max_decoded_rows[kNumProducts];
  Run linear[kNumProducts];
  Run gated[kNumProducts];
  Unpack unpack[kNumProducts];  // null: nothing to unpack

  // One row of x, f32 or [1] bf16, as base/quantize_kernel.h has it.
  void (*quantize_int8[2])(const void* x, int64_t count, int8_t* q, float* scale) noexcept;
  // By a scale that is given; int8: false, and zeros, where the row has a NaN.
  bool (*quantize_int8_by[2])(const void* x, int64_t count, float scale, int8_t* q) noexcept;
  void (*round_e4m3[2])(const void* x, int64_t count, float scale, uint16_t* y) noexcept;
  void (*quantize_mx[2])(const void* x, int64_t count, uint8_t* q, uint8_t* scales) noexcept;
  void (*dequantize_mx)(const uint8_t* q, const uint8_t* scales, int64_t count,
                        uint16_t* y) noexcept;
  void (*sum_groups)(const int8_t* q, int64_t groups, int64_t group, int32_t* sums) noexcept;
};

// Rows are cut into tiles of nearly equal height: 13 rows are 7 + 6, since a tile of 1 row would
// leave the arithmetic units waiting for weights. Tile t of `tiles` starts at row:
constexpr int64_t tile_first(int64_t m, int64_t tiles, int64_t t) {
  return m * t / tiles;
}
constexpr int64_t num_tiles(int64_t m, int max_rows) {
  return (m + max_rows - 1) / max_rows;
}

// Rows that are not packed are read through one pointer each: more than this collide in L1, since
// rows often lie a multiple of 4 KiB apart, in the same cache set (8 ways or more).
constexpr int kMaxUnpackedRows = 6;

// Plain C++: any CPU, and what the others are compared with. Multiplies and adds round separately.
extern const GemmKernels kScalarKernels;
#if defined(__x86_64__)
extern const GemmKernels kAvx2Kernels;        // with FMA, F16C
extern const GemmKernels kAvx2VnniKernels;    // also AVX-VNNI
extern const GemmKernels kAvx512Kernels;      // F, BW, DQ, VL
extern const GemmKernels kAvx512Bf16Kernels;  // also BF16, VNNI, VBMI
#elif defined(__aarch64__)
extern const GemmKernels kNeonKernels;         // any AArch64
extern const GemmKernels kNeonDotprodKernels;  // also DotProd
extern const GemmKernels kNeonBf16Kernels;     // also BF16, I8MM
#endif

// The exact (erf) gelu: one baseline function for all instruction sets.
float gelu(float x) noexcept;

}  // namespace trimtab
