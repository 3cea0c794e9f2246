// SPDX-License-Identifier: Apache-2.0
#include "base/cat.h"
#include "experts/panels.h"
#include "experts/product.h"
#include "experts/source.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {

Mlp::Mlp(const MlpSource& source, Activation activation, DType dtype, const GemmKernels* kernels)
    : gate_up_(pack_gated(source, dtype, kernels)), activation_(activation) {
  check_source(source.down, gate_up_.in, gate_up_.out, "the down weight");
  down_ = Linear(source.down, source.down_bias, dtype, gate_up_.kernels);
}

void Mlp::gate_up(ConstRows x, Rows act, std::span<std::byte> scratch, Team& team) const {
  check_product(gate_up_, x, act, "gate and up");
  if (scratch.size() < scratch_bytes(x.rows)) {
    throw InvalidArgument(
        cat("gate and up: ", scratch_bytes(x.rows), " bytes of scratch needed, got ", scratch.size()));
  }
  share(team, num_panels(gate_up_), 2 * x.rows * hidden() * intermediate(),
        [&](int64_t panel) { gated_panel(gate_up_, panel, activation_, x, act); });
}

void Mlp::down(ConstRows act, Rows y, Team& team) const {
  if (act.dtype != dtype()) {
    throw InvalidArgument(cat("down: act must be ", name(dtype()), " as the weights, not ", name(act.dtype)));
  }
  down_.run(act, y, team);
}

size_t Mlp::scratch_bytes(int64_t) const {
  return 0;
}

}  // namespace trimtab
