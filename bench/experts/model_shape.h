// SPDX-License-Identifier: Apache-2.0
// The sizes that a measurement is made for: a model's experts by name, or one matrix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace trimtab::bench {

// The routed experts of one layer.
struct ModelShape {
  std::string_view name;
  int64_t hidden, intermediate;
  int experts, top_k;
};

// One linear map: out x in, the rows and columns of its weights.
struct MatrixShape {
  int64_t out, in;
};

using Shape = std::variant<ModelShape, MatrixShape>;

std::span<const ModelShape> model_shapes();

// A model's name or NxK. Throws InvalidArgument.
Shape parse_shape(const std::string& text);
// Of models only. Throws InvalidArgument.
const ModelShape& parse_model(const std::string& text);

}  // namespace trimtab::bench
