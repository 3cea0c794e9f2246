// SPDX-License-Identifier: Apache-2.0
// Finds the weights of a checkpoint by name, plain or quantised, with the checks that every one of
// them needs.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/module_list.h"
#include "trimtab/checkpoint.h"

namespace trimtab {

// All functions throw FormatError, naming file, tensor and where it is there its offset, for
// tensors that are absent or have another shape or element type, and for those that are quantised
// where quantization_config does not say so.
class WeightFinder {
 public:
  using Names = std::set<std::string, std::less<>>;
  // All outlive this. found: gets the names of the tensors that were handed out; may be null.
  WeightFinder(const SafeTensors& tensors, const QuantizationConfig& quantization,
               Names* found = nullptr)
      : tensors_(tensors), modules_(quantization), method_(quantization.method), found_(found) {}

  // A tensor of f32, bf16 or f16.
  const TensorView& plain(const std::string& name, std::span<const int64_t> shape) const;
  VectorSource vector(const std::string& name, int64_t size) const;
  // The numbers of a tensor of I32 or I64.
  std::vector<int64_t> integers(const std::string& name, std::span<const int64_t> shape) const;
  // The weight of a linear map: the tensor MODULE.weight, or the tensors in its place when the
  // module is quantised. A module that quantization_config lists may have a plain weight all the
  // same, without a scale.
  MatrixSource matrix(const std::string& module, int64_t rows, int64_t cols) const;
  // The index of the group that says how a module is quantised; -1: it is not.
  int group_of(const std::string& module) const;
  // The scale of the rows that meet a quantised module, MODULE.input_scale, where the checkpoint
  // brings one for all of them; else 0.
  float input_scale(const std::string& module) const;
  // gpt-oss: the matrices of all experts of `module`, one below the other, out of
  // module.NAME_blocks and NAME_scales.
  MatrixSource mxfp4(const std::string& module, const std::string& name, int64_t experts,
                     int64_t rows, int64_t cols) const;

 private:
  bool is_plain(const std::string& weight) const;  // there, and not quantised
  // As SafeTensors::at(); notes the name.
  const TensorView& at(const std::string& name) const;
  std::string scale_name(const std::string& weight, const QuantizationConfig::Group& group) const;
  const TensorView& typed(const std::string& name, DType dtype,
                          std::span<const int64_t> shape) const;
  MatrixSource stored(const std::string& weight, const QuantizationConfig::Group& group,
                      int64_t rows, int64_t cols) const;
  MatrixSource packed(const std::string& weight, const QuantizationConfig::Group& group,
                      int64_t rows, int64_t cols) const;
  MatrixSource gptq(const std::string& module, const QuantizationConfig::Group& group, int64_t rows,
                    int64_t cols) const;
  MatrixSource awq(const std::string& module, const QuantizationConfig::Group& group, int64_t rows,
                   int64_t cols) const;
  void set_groups(const std::string& module, const QuantizationConfig::Group& group,
                  MatrixSource& source) const;
  void set_scales(const std::string& name, const QuantizationConfig::Group& group,
                  MatrixSource& source) const;
  void check_packed_shape(const std::string& name, int64_t rows, int64_t cols) const;

  const SafeTensors& tensors_;
  QuantisedModules modules_;
  QuantizationConfig::Method method_;
  Names* found_;
};

// As the public one; found: as WeightFinder has it.
MoeTensors find_moe_tensors(const SafeTensors& tensors, const ModelConfig& config, int layer,
                            WeightFinder::Names* found);

}  // namespace trimtab
