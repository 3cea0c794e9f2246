// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "base/cat.h"
#include "base/row_tasks.h"
#include "trimtab/error.h"
#include "trimtab/layer.h"

namespace trimtab {

SharedExperts::SharedExperts(std::shared_ptr<const Mlp> mlp, std::shared_ptr<const Linear> gate)
    : mlp_(std::move(mlp)), gate_(std::move(gate)) {
  if (!mlp_) throw InvalidArgument("shared experts: no mlp");
  if (gate_ && (gate_->in() != mlp_->hidden() || gate_->out() != 1)) {
    throw InvalidArgument(cat("shared experts: a gate of ", gate_->in(), " -> ", gate_->out(),
                              ", expected ", mlp_->hidden(), " -> 1"));
  }
}

size_t SharedExperts::workspace_bytes(int64_t tokens) const {
  return Workspace::padded(shape_bytes(mlp_->dtype(), tokens, mlp_->intermediate())) +
         Workspace::padded(shape_bytes(DType::kF32, tokens)) +
         Workspace::padded(mlp_->scratch_bytes(tokens));
}

SharedExperts::FirstHalf SharedExperts::first(ConstRows x, ConstRows x_experts, Lane& lane) const {
  FirstHalf half;
  half.act = lane.workspace.take_rows(x.rows, mlp_->intermediate(), mlp_->dtype());
  half.scale = lane.workspace.take_rows(gate_ ? x.rows : 0, 1, DType::kF32);
  half.scratch = lane.workspace.take<std::byte>(mlp_->scratch_bytes(x.rows));
  mlp_->gate_up(x_experts, half.act, half.scratch, lane.team);
  if (gate_) {
    gate_->run(x, half.scale, lane.team);
    for (int64_t t = 0; t < x.rows; ++t) {
      float& scale = *half.scale.row_as<float>(t);
      scale = 1.0F / (1.0F + std::exp(-scale));
    }
  }
  return half;
}

void SharedExperts::second(const FirstHalf& half, Rows y, Lane& lane) const {
  mlp_->down(half.act, y, half.scratch, lane.team);
  if (!gate_) return;
  share_rows(lane.team, y.rows, y.row_bytes(), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const float scale = *half.scale.row_as<float>(t);
      float* const row = y.row_as<float>(t);
      for (int64_t h = 0; h < y.cols; ++h) row[h] *= scale;
    }
  });
}

}  // namespace trimtab
