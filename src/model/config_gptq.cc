// SPDX-License-Identifier: Apache-2.0
// quantization_config of GPTQ (AutoGPTQ's BaseQuantizeConfig, GPTQModel's QuantizeConfig) and of
// AWQ (transformers' AwqConfig).
#include <algorithm>
#include <cctype>

#include "model/config_fields.h"

namespace trimtab {
namespace {

using Group = QuantizationConfig::Group;
using Method = QuantizationConfig::Method;

// Weights only, in groups of inputs, with zero points.
Group integers(const ConfigFields& fields, DType dtype) {
  Group group = {.targets = {"Linear"},
                 .dtype = dtype,
                 .block_rows = 1,
                 .has_zero_points = true,
                 .rows_key = fields.full_name("quant_method"),
                 .rows_value = fields.text_or("quant_method", "")};
  const int size = fields.integer("group_size", -1);
  if (size == 0) throw fields.error("group_size", "is 0; -1 stands for all inputs");
  if (size > 0) group.block_cols = size;
  return group;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Rules for single modules. "-:" leaves modules as they are, which their tensors tell.
void check_dynamic(const ConfigFields& fields) {
  if (!fields.has("dynamic")) return;
  const nlohmann::json& rules = *fields.find("dynamic");
  if (!rules.is_object()) throw fields.error("dynamic", "is not an object");
  for (const auto& [rule, settings] : rules.items()) {
    if (!rule.starts_with("-:")) {
      throw fields.error("dynamic", cat("has the rule '", rule, "': other settings for single ",
                                        "modules are not supported, only '-:'"));
    }
  }
}

}  // namespace

QuantizationConfig read_gptq(const ConfigFields& fields) {
  // Those that are not read below say how weights were found, or how others run them.
  fields.allow_only({"quant_method",
                     "bits",
                     "group_size",
                     "sym",
                     "desc_act",
                     "static_groups",
                     "checkpoint_format",
                     "is_marlin_format",
                     "pack_dtype",
                     "dynamic",
                     "lm_head",
                     "damp_percent",
                     "damp_auto_increment",
                     "true_sequential",
                     "hyb_act",
                     "mse",
                     "model_name_or_path",
                     "model_file_base_name",
                     "meta",
                     "act_group_aware",
                     "modules_in_block_to_quantize",
                     "modules_to_not_convert",
                     "tokenizer",
                     "dataset",
                     "block_name_to_quantize",
                     "module_name_preceding_first_block",
                     "batch_size",
                     "pad_token_id",
                     "use_exllama",
                     "disable_exllama",
                     "exllama_config",
                     "max_input_length",
                     "use_cuda_fp16",
                     "model_seqlen",
                     "cache_block_outputs",
                     "backend",
                     "version",
                     "format"});
  const int bits = fields.integer("bits", 1, 8);
  if (bits != 4 && bits != 8)
    throw fields.error("bits", cat("is ", bits, "; supported are 4 and 8"));
  Group group = integers(fields, bits == 4 ? DType::kU4 : DType::kU8);
  const std::string key = fields.alias({"checkpoint_format", "format"});
  const std::string format = fields.text_or(key, "gptq");
  if (format != "gptq" && format != "gptq_v2")
    throw fields.error(key, cat("is '", format, "'; supported are gptq and gptq_v2"));
  if (fields.flag_or("is_marlin_format", false))
    throw fields.error("is_marlin_format", "is true, which is not supported");
  const std::string words = fields.text_or("pack_dtype", "int32");
  if (words != "int32")
    throw fields.error("pack_dtype", cat("is '", words, "'; supported is int32"));
  check_dynamic(fields);
  // The first format stores zero points less 1.
  group.zero_offset = format == "gptq" ? 1 : 0;
  return {Method::kGptq, {group}, fields.texts("modules_to_not_convert")};
}

QuantizationConfig read_awq(const ConfigFields& fields) {
  fields.allow_only({"quant_method", "bits", "w_bit", "group_size", "q_group_size", "version",
                     "zero_point", "modules_to_not_convert", "backend", "do_fuse",
                     "modules_to_fuse", "fuse_max_seq_len", "exllama_config"});
  if (fields.integer(fields.alias({"bits", "w_bit"}), 1, 8) != 4)
    throw fields.error("bits", "is not 4, the only size of AWQ that is supported");
  const std::string version = lower(fields.text_or("version", "gemm"));
  if (version != "gemm")
    throw fields.error("version", cat("is '", version, "'; supported is gemm"));
  if (!fields.flag_or("zero_point", true))
    throw fields.error("zero_point", "is false, which is not supported");
  return {Method::kAwq, {integers(fields, DType::kU4)}, fields.texts("modules_to_not_convert")};
}

}  // namespace trimtab
