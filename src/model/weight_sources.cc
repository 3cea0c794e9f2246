// SPDX-License-Identifier: Apache-2.0
#include "model/weight_sources.h"

#include "base/cat.h"

namespace trimtab {
namespace {

constexpr std::string_view kNotYet = "quantised checkpoints are not supported yet";

bool is_weight_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void check_source(const TensorView& tensor, size_t dimensions) {
  if (tensor.shape.size() != dimensions) {
    throw InvalidArgument(cat("a tensor of ", tensor.shape.size(), " dimensions in place of ", dimensions));
  }
  if (!is_weight_type(tensor.dtype)) {
    throw InvalidArgument(cat("weights of ", name(tensor.dtype), " in place of F32, BF16 or F16"));
  }
}

}  // namespace

const TensorView& find_weight(const SafeTensors& tensors, const std::string& name, std::span<const int64_t> shape) {
  if (!tensors.contains(name)) {
    // Compressed-tensors (int4), mxfp4; GPTQ and AWQ have "qweight" in place of "weight".
    const std::string module = name.substr(0, name.rfind('.'));
    for (const std::string& quantised : {name + "_packed", name + "_blocks", module + ".qweight"}) {
      if (tensors.contains(quantised)) throw tensors.bad_tensor(quantised, cat("is quantised: ", kNotYet));
    }
  }
  const TensorView& tensor = tensors.at(name);
  if (!is_weight_type(tensor.dtype)) {
    throw tensors.bad_tensor(name, cat("holds ", trimtab::name(tensor.dtype), " in place of F32, BF16 or F16",
                                       bits(tensor.dtype) <= 8 ? cat(": ", kNotYet) : ""));
  }
  return tensors.at(name, shape);
}

MatrixSource matrix_source(const TensorView& tensor) {
  check_source(tensor, 2);
  return {tensor.data.data(), tensor.dtype, tensor.shape[0], tensor.shape[1], tensor.shape[1], 1};
}

VectorSource vector_source(const TensorView& tensor) {
  check_source(tensor, 1);
  return {tensor.data.data(), tensor.dtype, tensor.shape[0], 1};
}

}  // namespace trimtab
