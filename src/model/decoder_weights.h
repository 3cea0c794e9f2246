// SPDX-License-Identifier: Apache-2.0
// The packed weights of one decoder layer.
#pragma once

#include <memory>
#include <vector>

#include "trimtab/decoder.h"

namespace trimtab {

struct LayerWeights {
  std::vector<float> attention_norm, feed_forward_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;  // [head_dim] or [heads * head_dim]; empty: none
  Linear q, k, v, o;

  // A dense layer has `dense` and nothing below it.
  std::shared_ptr<const Mlp> dense;

  int moe_layer = -1;  // index among the MoE layers
  std::shared_ptr<const Linear> gate;
  std::shared_ptr<const Router> router;
  std::vector<std::shared_ptr<const Mlp>>
      experts;  // [expert parts, logical experts]; null where no wanted rank holds it
  // [expert parts] or empty: none; null where no wanted rank holds the part.
  std::vector<std::shared_ptr<const Mlp>> shared;
  std::shared_ptr<const Linear> shared_gate;  // null: none
};

}  // namespace trimtab
