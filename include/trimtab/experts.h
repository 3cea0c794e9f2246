// SPDX-License-Identifier: Apache-2.0
// The experts compute one output row for each row that they are given, grouped by expert: out =
// (act(x W_gate^T + b_gate, x W_up^T + b_up)) W_down^T + b_down. Weights are kept per slot in one
// table, so that one expert can be replaced without touching the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "trimtab/dispatcher.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"
#include "trimtab/weight_format.h"
#include "trimtab/weight_source.h"

namespace trimtab {

enum class ActivationKind {
  kSilu,      // silu(gate) * up
  kGelu,      // gelu(gate) * up, exact (erf)
  kGeluTanh,  // gelu(gate) * up, tanh form
  // g = min(gate, limit), u = clamp(up, -limit, limit): (u + beta) * g * sigmoid(alpha * g). The
  // defaults are gpt-oss's; alpha = 1, beta = 0 is a silu with limits.
  kSwigluClamp,
  kSwigluStep  // min(silu(gate), limit) * clamp(up, -limit, limit)
};

struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  float alpha = 1.702F;  // kSwigluClamp only
  float limit = 7.0F;    // kSwigluClamp and kSwigluStep only
  float beta = 1.0F;     // kSwigluClamp only
};

struct GemmKernels;  // the functions of one instruction set: src/experts/gemm.h

// Weights as the kernels read them, in panels (layout: src/experts/weights.h): one matrix, or the
// gate and up matrices of a gated MLP side by side.
struct PackedWeights {
  const GemmKernels* kernels = nullptr;  // the kernels that the panels are for
  Buffer panels;
  Buffer scales, zeros;     // where the format has them
  Buffer bias;              // empty: none
  Buffer row_scale;         // [1] f32, MlpSource's a1_scale or a2_scale; empty: none
  Buffer order;             // [in] int32, the input at each place; empty: they are in order
  int64_t in = 0, out = 0;  // the inputs and outputs of one matrix
  WeightFormat format;
  bool gated = false;

  size_t bytes() const {
    return panels.bytes() + scales.bytes() + zeros.bytes() + bias.bytes() + row_scale.bytes() +
           order.bytes();
  }
};

// A linear map packed for the kernels: y = x W^T + b. Immutable after construction; shared by any
// number of threads.
class Linear {
 public:
  Linear() = default;
  // Takes all formats; sources of any type are converted (to nearest, ties to even) and not needed
  // afterwards. kernels: null for those of kernel_isa(). arena: null for memory of its own. team:
  // its threads pack the panels, with the same bits; null: the calling thread alone does. Throws
  // InvalidArgument for empty matrices, weights that the format can't hold (NaN, infinities), and a
  // bias of the wrong size. With an arena that has no memory the weights are not read, and the map
  // is an outline: it knows its sizes, and run() throws InvalidArgument.
  Linear(const MatrixSource& weight, const VectorSource& bias, WeightFormat format,
         const GemmKernels* kernels = nullptr, BufferArena* arena = nullptr, Team* team = nullptr);
  // Takes weights that are packed already, such as views of a mapped file. Throws InvalidArgument
  // when their parts don't have the sizes that their shape and format want.
  explicit Linear(PackedWeights packed);
  // x: [m, in] f32 or bf16, whatever the weights are; y: f32 [m, out], apart from x. Each output is
  // one sum in order of the input index, in f32, the bias last: its bits do not depend on m, on
  // where the row stands, or on the team. Throws InvalidArgument when the shapes or types do not
  // fit, and for formats other than kF32, kBF16 and kF16.
  void run(ConstRows x, Rows y, Team& team) const;
  // The same for any format, whose rows are rounded or quantised once and kept in scratch: at least
  // scratch_bytes(m), 64-byte aligned. From a few rows on it is the faster one.
  void run(ConstRows x, Rows y, std::span<std::byte> scratch, Team& team) const;
  size_t scratch_bytes(int64_t m) const;
  int64_t in() const { return packed_.in; }
  int64_t out() const { return packed_.out; }
  WeightFormat weight_format() const { return packed_.format; }
  size_t bytes() const { return packed_.bytes(); }
  const PackedWeights& packed() const { return packed_; }

 private:
  PackedWeights packed_;
};

// A packed gated MLP: one expert, a shared expert or a dense layer's feed-forward block. It runs in
// two halves, so that other work can go between them. Immutable after construction; any number of
// threads may share it.
class Mlp {
 public:
  // Takes all formats; a source that is quantised the same way is copied, never quantised again.
  // Throws as Linear, and for weights that the format can't hold (NaN, infinities). Either both
  // gate and up have a bias, or neither. With an arena that has no memory it is an outline, as a
  // Linear is.
  Mlp(const MlpSource& source, Activation activation, WeightFormat format,
      const GemmKernels* kernels = nullptr, BufferArena* arena = nullptr, Team* team = nullptr);
  // Takes weights that are packed already, such as views of memory that others fill. They must
  // belong together: both halves of one shape and format, for the same kernels. Throws
  // InvalidArgument when they don't.
  Mlp(PackedWeights gate_up, PackedWeights down, Activation activation);
  int64_t hidden() const { return down_.out; }
  int64_t intermediate() const { return down_.in; }
  WeightFormat weight_format() const { return down_.format; }
  // The type of act: WeightFormat::rows().
  DType dtype() const { return down_.format.rows(); }
  // First half: act [m, intermediate] = activation(x W_gate^T, x W_up^T), computed in f32 and
  // rounded to dtype(). x: f32 or bf16, rounded to what the format multiplies. scratch: at least
  // scratch_bytes(m), 64-byte aligned.
  void gate_up(ConstRows x, Rows act, std::span<std::byte> scratch, Team& team) const;
  // Second half: y f32 [m, hidden] = act W_down^T, with scratch as above.
  void down(ConstRows act, Rows y, std::span<std::byte> scratch, Team& team) const;
  // The bytes of scratch that either half needs for m rows.
  size_t scratch_bytes(int64_t m) const;
  size_t bytes() const { return gate_up_.bytes() + down_.bytes(); }
  const PackedWeights& gate_up_packed() const { return gate_up_; }
  const PackedWeights& down_packed() const { return down_; }
  Activation activation() const { return activation_; }

 private:
  PackedWeights gate_up_, down_;
  Activation activation_;
};

// The kernel half of the layer. Immutable: run() may be called by several lanes at once, each with
// its own team, out and scratch. To put other weights into a slot, make new Experts from a table
// that shares all other slots.
class Experts {
 public:
  virtual ~Experts() = default;
  virtual Format format() const = 0;
  virtual Left left() const = 0;
  virtual int64_t hidden() const = 0;
  virtual int num_local() const = 0;  // the number of this rank's slots
  virtual DType dtype() const = 0;    // the type that Tokens::x should have
  // May Tokens::x have this type? Beside dtype() that is the type that rows are quantised to
  // anyway, with their scales.
  virtual bool accepts(DType x) const { return x == dtype(); }
  // The bytes of scratch, 64-byte aligned, that a run with at most `rows` rows needs.
  virtual size_t scratch_bytes(int64_t rows) const = 0;
  // May out of run() be Tokens::y, which overlaps tokens.x? Then the experts take the rows in their
  // order, in groups of at most kRowsAtOnce, and write outputs of a group only when they have read
  // all rows before it. Not with Left::kNothing.
  virtual bool overwrites_rows() const { return false; }
  // out: f32, the shape of tokens.x, or with Left::kNothing a row for each token of tokens.picks,
  // in other memory or as overwrites_rows() says. Rows do not influence each other. Throws
  // InvalidArgument when tokens, out or scratch do not fit; tokens.x may be null where there are no
  // rows.
  virtual void run(const Tokens& tokens, Rows out, std::span<std::byte> scratch,
                   Team& team) const = 0;
};

// Makes experts from one packed Mlp for each slot. All slots must have one shape, format and
// instruction set, or InvalidArgument is thrown; one Mlp may stand in several slots. The table may
// be empty: then run() takes no rows. left: with kSum the router's weights multiply the outputs
// inside the MLP, biases included, and Tokens::weights are needed; with kNothing the experts also
// sum a token's picks here, and Tokens::picks are needed too. The layer's output has the same bits
// in all three cases.
std::unique_ptr<Experts> make_grouped_experts(std::vector<std::shared_ptr<const Mlp>> slots,
                                              int64_t hidden, WeightFormat weights,
                                              Format format = Format::kStandard,
                                              Left left = Left::kWeightAndSum);

// The instruction set that weights are packed for and the kernels run on: the best this CPU has, or
// what TRIMTAB_ISA names (scalar; x86-64: avx2, avx2_vnni, avx512, avx512_bf16; AArch64: neon,
// neon_dotprod, neon_bf16). Read once. Throws InvalidArgument with the choices when TRIMTAB_ISA
// names one that is unknown or that the CPU lacks. Instruction sets differ by rounding only.
std::string_view kernel_isa();

}  // namespace trimtab
