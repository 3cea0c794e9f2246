// SPDX-License-Identifier: Apache-2.0
// The layout of PackedWeights. The outputs are cut into panels of GemmKernels::width columns, which
// a kernel streams through once. One matrix: a column an output. Gated: the gate columns left, the
// up columns right, width / 2 pairs, so that both halves of an activation are in one tile. Columns
// that stand for no output and inputs beyond the last are zero. Scales, zero points and the bias
// lie in the same order, one piece a panel.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "experts/gemm.h"
#include "trimtab/experts.h"

namespace trimtab {

// The layout of a stored format, as the kernels read it.
struct Storage {
  Product product;        // with rows of WeightFormat::quantized_rows()
  int step_inputs;        // inputs of a step
  int step_bytes;         // bytes of a step of one column
  int64_t padded_in;      // inputs, padded to whole steps and groups
  int64_t group;          // inputs that share a scale; padded_in if all do or there is none
  int scale_bytes;        // the size of one scale; 0: there are none
  int zero_bytes = 0;     // the size of a zero point where weights have them: int32, or uint8
  int64_t sum_group = 0;  // inputs that are summed before they are scaled; 0: group

  int64_t steps() const { return padded_in / step_inputs; }
  int64_t groups() const { return padded_in / group; }
};
// Throws InvalidArgument for a group that can't be.
Storage storage(WeightFormat format, int64_t in);

// The stored number that stands for 0 where integers have no zero points.
int zero_code(WeightFormat format);
// Stores zero point `index`, in [0, 255], with the size that the format gives it.
void put_zero_point(std::byte* zeros, int64_t index, int zero_bytes, int32_t zero);

struct Panel {
  int64_t first;  // the outputs [first, first + cols)
  int cols;
};
int64_t num_panels(const PackedWeights& weights);
Panel panel(const PackedWeights& weights, int64_t index);
// Bytes of one panel.
size_t panel_bytes(const PackedWeights& weights);

// The bytes that weights of this shape, format and kernels take; zeros and bias where there are
// any.
struct PartBytes {
  size_t panels, scales, zeros, bias, row_scale, order;
};
PartBytes part_bytes(const PackedWeights& weights);

// The parts of packed weights one by one, in the order in which blocks and files hold them.
struct PackedPart {
  std::string_view name;
  Buffer PackedWeights::* buffer;
  size_t PartBytes::* bytes;
  bool optional;  // may be absent where part_bytes() has a size for it
};
inline constexpr std::array<PackedPart, 6> kPackedParts = {
    {{"panels", &PackedWeights::panels, &PartBytes::panels, false},
     {"scales", &PackedWeights::scales, &PartBytes::scales, false},
     {"zeros", &PackedWeights::zeros, &PartBytes::zeros, true},
     {"bias", &PackedWeights::bias, &PartBytes::bias, true},
     {"row_scale", &PackedWeights::row_scale, &PartBytes::row_scale, true},
     {"order", &PackedWeights::order, &PartBytes::order, true}}};
// Has every part the size that shape, format and kernels want?
bool parts_fit(const PackedWeights& weights);

// Weights of this shape without memory. kernels null: the chosen ones.
PackedWeights describe_weights(int64_t in, int64_t out, WeightFormat format, bool gated,
                               const GemmKernels* kernels);

// Do products in this format use a row_scale? (kFP8: its scales are multiplied with it when they
// are packed, so rows keep the numbers that e4m3 codes stand for.)
bool uses_row_scale(WeightFormat format);

// kernels null: the chosen ones. row_scale 0: none. Memory comes from the arena. team: packs the
// panels; null: the calling thread does. Throws InvalidArgument as Linear's and Mlp's constructors
// do.
PackedWeights pack_linear(std::string_view what, const MatrixSource& weight,
                          const VectorSource& bias, float row_scale, WeightFormat format,
                          const GemmKernels* kernels, BufferArena& arena, Team* team);
PackedWeights pack_gated(const MlpSource& source, WeightFormat format, const GemmKernels* kernels,
                         BufferArena& arena, Team* team);

}  // namespace trimtab
