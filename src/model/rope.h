// SPDX-License-Identifier: Apache-2.0
// The angles of the rotary embedding, with the ways in which models stretch it to contexts that are
// longer than those that they were trained with.
#pragma once

#include <vector>

#include "trimtab/checkpoint.h"

namespace trimtab {

struct Rope {
  std::vector<float> inverse_frequencies;  // [head_dim / 2] angle of one position, in radians
  float scale = 1.0F;                      // multiplies sines and cosines
};

// Throws InvalidArgument for a rope_type other than default, linear, yarn and llama3.
// The formulas are those of transformers' modeling_rope_utils.py; yarn is arXiv 2309.00071.
Rope make_rope(const ModelConfig& config);

}  // namespace trimtab
