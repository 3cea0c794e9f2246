// SPDX-License-Identifier: Apache-2.0
// A random gated MLP in the form of a checkpoint, for the tests of this room.
#pragma once

#include <random>

#include "experts/test_matrices.h"
#include "trimtab/experts.h"

namespace trimtab::test {

struct TestMlp {
  TestMlp(int64_t hidden, int64_t intermediate, DType dtype, Form form, bool biases,
          std::mt19937& random)
      : gate(make_matrix(intermediate, hidden, dtype, form, random)),
        up(make_matrix(intermediate, hidden, dtype, form, random)),
        down(make_matrix(hidden, intermediate, dtype,
                         form == Form::kInterleaved ? Form::kTransposed : form, random)) {
    if (!biases) return;
    const int64_t stride = form == Form::kInterleaved ? 2 : 1;
    gate_bias = make_vector(intermediate, dtype, stride, random);
    up_bias = make_vector(intermediate, dtype, stride, random);
    down_bias = make_vector(hidden, dtype, 1, random);
  }

  MlpSource source() const {
    return {gate.source,      up.source,      down.source,
            gate_bias.source, up_bias.source, down_bias.source};
  }

  TestMatrix gate, up, down;
  TestVector gate_bias, up_bias, down_bias;
};

// The halves of an MLP with exactly the scratch that it asks for.
inline void gate_up(const Mlp& mlp, ConstRows x, Rows act, Team& team) {
  const Buffer scratch(mlp.scratch_bytes(x.rows));
  mlp.gate_up(x, act, {scratch.data(), scratch.bytes()}, team);
}
inline void down(const Mlp& mlp, ConstRows act, Rows y, Team& team) {
  const Buffer scratch(mlp.scratch_bytes(act.rows));
  mlp.down(act, y, {scratch.data(), scratch.bytes()}, team);
}

}  // namespace trimtab::test
