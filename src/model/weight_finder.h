// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint by name, plain or quantised, with the checks that every one of them
// needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/module_list.h"
#include "trimtab/checkpoint.h"

namespace trimtab {

// All functions throw FormatError naming file, tensor and, where it is there, offset: absent,
// another shape, another element type; quantised where quantization_config does not say so.
class WeightFinder {
 public:
  // Both outlive this.
  WeightFinder(const SafeTensors& tensors, const QuantizationConfig& quantization)
      : tensors_(tensors), modules_(quantization), method_(quantization.method) {}

  // A tensor of f32, bf16 or f16.
  const TensorView& plain(const std::string& name, std::span<const int64_t> shape) const;
  VectorSource vector(const std::string& name, int64_t size) const;
  // The weight of a linear map: the tensor MODULE.weight, or what stands in its place when the
  // module is quantised. A module that quantization_config has and whose weight is plain all the
  // same is taken as it is.
  MatrixSource matrix(const std::string& module, int64_t rows, int64_t cols) const;
  // gpt-oss: the matrices of all experts of `module`, one below the other. out of
  // module.NAME_blocks and NAME_scales.
  MatrixSource mxfp4(const std::string& module, const std::string& name, int64_t experts,
                     int64_t rows, int64_t cols) const;

 private:
  const TensorView& typed(const std::string& name, DType dtype,
                          std::span<const int64_t> shape) const;
  MatrixSource stored(const std::string& weight, const QuantizationConfig::Group& group,
                      int64_t rows, int64_t cols) const;
  MatrixSource packed(const std::string& weight, const QuantizationConfig::Group& group,
                      int64_t rows, int64_t cols) const;
  void set_scales(const std::string& name, const QuantizationConfig::Group& group,
                  MatrixSource& source) const;
  void check_packed_shape(const std::string& name, int64_t rows, int64_t cols) const;

  const SafeTensors& tensors_;
  QuantisedModules modules_;
  QuantizationConfig::Method method_;
};

}  // namespace trimtab
