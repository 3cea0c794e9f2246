// SPDX-License-Identifier: Apache-2.0
// The end of a call: what the routed, the shared and the zero experts have made becomes what the
// caller asked for, in one pass over the rows.
#pragma once

#include <span>

#include "trimtab/layer.h"

namespace trimtab {

struct Outputs {
  ConstRows x;                      // the call's
  std::span<const float> identity;  // [tokens] the weights of zero experts, or empty
  Rows routed = {};                 // F32; may be the caller's memory
  Rows shared = {};                 // the same; no columns without shared experts
};

// out.routed = routed + identity * x, and + shared unless they stay apart; rounded where out is
// BF16. routed and shared hold nothing of use afterwards, but where they are the caller's.
void write_outputs(const Outputs& made, const LayerOutput& out, Team& team);

}  // namespace trimtab
