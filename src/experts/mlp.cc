// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/rows.h"
#include "experts/product_pipeline.h"
#include "experts/source.h"
#include "experts/weights.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {

Mlp::Mlp(const MlpSource& source, Activation activation, WeightFormat format,
         const GemmKernels* kernels, BufferArena* arena, Team* team)
    : activation_(activation) {
  BufferArena own(0);
  BufferArena& memory = arena == nullptr ? own : *arena;
  gate_up_ = pack_gated(source, format, kernels, memory, team);
  check_source(source.down, gate_up_.in, gate_up_.out, "the down weight");
  down_ = pack_linear("the down weight", source.down, source.down_bias, source.a2_scale, format,
                      gate_up_.kernels, memory, team);
}

Mlp::Mlp(PackedWeights gate_up, PackedWeights down, Activation activation)
    : gate_up_(std::move(gate_up)), down_(std::move(down)), activation_(activation) {
  if (!gate_up_.gated || down_.gated || gate_up_.in != down_.out || gate_up_.out != down_.in ||
      gate_up_.format != down_.format || gate_up_.kernels == nullptr ||
      gate_up_.kernels != down_.kernels) {
    throw InvalidArgument(cat("mlp: weights ", gate_up_.in, " -> ", gate_up_.out, " in ",
                              name(gate_up_.format), " and ", down_.in, " -> ", down_.out, " in ",
                              name(down_.format), " do not belong together"));
  }
  for (const PackedWeights* weights : {&gate_up_, &down_}) {
    if (!parts_fit(*weights)) {
      throw InvalidArgument(cat("mlp: weights of ", weights->bytes(), " bytes for ", weights->in,
                                " -> ", weights->out, " in ", name(weights->format)));
    }
  }
}

namespace {

void run_one(MlpHalf half, const Mlp& mlp, const ConstRows& x, const Rows& out,
             std::span<std::byte> scratch, Team& team) {
  check_scratch("mlp", mlp.scratch_bytes(x.rows), x, out, scratch);
  if (x.rows == 0) return;
  const ExpertRows part = {0, x.rows, &mlp};
  Carver carver(scratch.data());
  const PipelinedProduct product(half, std::span(&part, 1), {x}, out, team.size(), carver);
  run_pipeline(std::span(&product, 1), x.rows * x.cols * out.cols, team);
}

}  // namespace

void Mlp::gate_up(ConstRows x, Rows act, std::span<std::byte> scratch, Team& team) const {
  check_product(gate_up_, x, act, dtype(), "gate and up");
  run_one(MlpHalf::kGateUp, *this, x, act, scratch, team);
}

void Mlp::down(ConstRows act, Rows y, std::span<std::byte> scratch, Team& team) const {
  if (act.dtype != dtype()) {
    throw InvalidArgument(cat("down: act must be ", name(dtype()), ", not ", name(act.dtype)));
  }
  check_product(down_, act, y, DType::kF32, "down");
  run_one(MlpHalf::kDown, *this, act, y, scratch, team);
}

size_t Mlp::scratch_bytes(int64_t m) const {
  // Rows of f32 take most.
  return std::max(PipelinedProduct::bytes(gate_up_, 1, m, DType::kF32),
                  PipelinedProduct::bytes(down_, 1, m, dtype()));
}

}  // namespace trimtab
