// SPDX-License-Identifier: Apache-2.0
// quantization_config. The formats are transformers' FineGrainedFP8Config and Mxfp4Config, vLLM's
// fp8 without blocks, and QuantizationConfig of compressed-tensors.
#include <algorithm>
#include <array>

#include "model/config_fields.h"
#include "model/module_list.h"

namespace trimtab {
namespace {

using Method = QuantizationConfig::Method;
using Group = QuantizationConfig::Group;

constexpr std::array<std::string_view, 6> kMethods = {"",      "fp8",  "compressed-tensors",
                                                      "mxfp4", "gptq", "awq"};
using RowsQuantised = QuantizationConfig::Rows;
constexpr int64_t kWhole = QuantizationConfig::kWhole;

// NVFP4 has a scale in e4m3 for every 16 weights and one for the tensor.
constexpr std::string_view kNvfp4 =
    "NVFP4 (weight_scale_2 or weight_global_scale, input_scale) is not supported";

Method read_method(const ConfigFields& fields) {
  const std::string method = fields.text_or("quant_method", "");
  if (method.empty()) throw fields.error("quant_method", "is missing");
  if (method.starts_with("modelopt") && fields.text_or("quant_algo", "").starts_with("NVFP4"))
    throw fields.error("quant_algo", cat("is '", fields.text_or("quant_algo", ""), "': ", kNvfp4));
  const auto found = std::ranges::find(kMethods, method);
  if (found == kMethods.end()) {
    throw fields.error("quant_method", cat("is '", method, "'; supported are fp8, ",
                                           "compressed-tensors, mxfp4, gptq, awq"));
  }
  return static_cast<Method>(found - kMethods.begin());
}

// A block is given by its two sizes.
void read_block(const ConfigFields& fields, const std::string& key, Group& group) {
  const std::vector<int> sizes = fields.integers(key, 1);
  if (sizes.size() != 2)
    throw fields.error(key, cat("has ", sizes.size(), " numbers in place of 2"));
  group.block_rows = sizes[0];
  group.block_cols = sizes[1];
}

// Are experts stored in 4 bits? DeepSeek-V4 says so in either place.
bool has_fp4_experts(const ConfigFields& fields, const ConfigFields& model, Family family) {
  const ConfigFields& where = fields.has("expert_dtype") ? fields : model;
  const std::string dtype = where.text_or("expert_dtype", "fp8");
  if (dtype == "fp8") return false;
  if (dtype != "fp4")
    throw where.error("expert_dtype", cat("is '", dtype, "'; supported are fp8, fp4"));
  if (family != Family::kDeepseekV4)
    throw where.error("expert_dtype", "is 'fp4', which only deepseek_v4 has");
  return true;
}

QuantizationConfig read_fp8(const ConfigFields& fields, const ConfigFields& model, Family family) {
  fields.allow_only({"quant_method", "fmt", "weight_block_size", "activation_scheme", "scale_fmt",
                     "expert_dtype", "modules_to_not_convert", "ignored_layers", "dequantize"});
  const std::string format = fields.text_or("fmt", "e4m3");
  if (format != "e4m3") throw fields.error("fmt", cat("is '", format, "'; supported is e4m3"));
  Group group = {.targets = {"Linear"},
                 .dtype = DType::kF8E4M3,
                 .rows = RowsQuantised::kDynamic,
                 .rows_dtype = DType::kF8E4M3,
                 .rows_key = fields.full_name("activation_scheme")};
  const std::string scheme = fields.text_or("activation_scheme", "dynamic");
  if (scheme == "static") {
    group.rows = RowsQuantised::kStatic;
    group.rows_value = scheme;
    group.has_input_scale = true;
  } else if (scheme != "dynamic") {
    throw fields.error("activation_scheme", cat("is '", scheme, "'; known are dynamic and static"));
  }
  if (fields.has("weight_block_size")) {
    read_block(fields, "weight_block_size", group);
  } else {
    group.scale_of_tensor_or_rows = true;
  }
  const std::string ignore = fields.alias({"modules_to_not_convert", "ignored_layers"});
  QuantizationConfig config = {Method::kFp8, {group}, fields.texts(ignore)};
  if (!has_fp4_experts(fields, model, family)) return config;
  Group experts = group;
  experts.targets = {"re:.*\\.experts\\.\\d+\\."};
  experts.dtype = DType::kF4;
  experts.scale_of_tensor_or_rows = false;
  experts.block_rows = 1;
  experts.block_cols = 32;
  config.groups.insert(config.groups.begin(), experts);
  return config;
}

QuantizationConfig read_mxfp4(const ConfigFields& fields, Family family) {
  fields.allow_only({"quant_method", "modules_to_not_convert", "dequantize"});
  if (family != Family::kGptOss)
    throw fields.error("quant_method", cat("is 'mxfp4', which only gpt_oss has"));
  const Group experts = {.targets = {"re:.*\\.mlp\\.experts$"},
                         .dtype = DType::kF4,
                         .block_rows = 1,
                         .block_cols = 32,
                         .rows_key = fields.full_name("quant_method")};
  return {Method::kMxfp4, {experts}, fields.texts("modules_to_not_convert")};
}

// The type of the elements that a format of compressed-tensors stores.
DType read_element_type(const ConfigFields& format_of, const std::string& format,
                        const ConfigFields& weights) {
  if (format.starts_with("nvfp4"))
    throw format_of.error("format", cat("is '", format, "': ", kNvfp4));
  if (format != "int-quantized" && format != "float-quantized" && format != "naive-quantized" &&
      format != "pack-quantized") {
    throw format_of.error("format",
                          cat("is '", format, "'; supported are int-quantized, float-quantized, ",
                              "naive-quantized, pack-quantized"));
  }
  const std::string type = weights.text_or("type", "int");
  const int num_bits = weights.integer_or("num_bits", 8, 1, 32);
  const bool naive = format == "naive-quantized";
  if (type == "int" && num_bits == 8 && (naive || format == "int-quantized")) return DType::kI8;
  if (type == "float" && num_bits == 8 && (naive || format == "float-quantized"))
    return DType::kF8E4M3;
  if (type == "int" && format == "pack-quantized") {
    if (num_bits == 4) return DType::kU4;
    if (num_bits == 8) return DType::kU8;
  }
  throw weights.error(
      "num_bits", cat("is ", num_bits, " of type ", type, ", which is not supported as ", format));
}

void read_strategy(const ConfigFields& weights, Group& group) {
  const int group_size = weights.integer_or("group_size", 0, -1);
  const char* const usual = group_size > 0 ? "group" : group_size < 0 ? "channel" : "tensor";
  const std::string strategy = weights.text_or("strategy", usual);
  if (strategy == "tensor") {
    group.block_rows = group.block_cols = kWhole;
  } else if (strategy == "channel") {
    group.block_rows = 1;
    group.block_cols = kWhole;
  } else if (strategy == "group") {
    group.block_rows = 1;
    group.block_cols = weights.integer("group_size", 1);
  } else if (strategy == "block") {
    read_block(weights, "block_structure", group);
  } else {
    throw weights.error("strategy",
                        cat("is '", strategy, "'; supported are tensor, channel, group, block"));
  }
}

// How rows are quantised. Absent: they are not.
void read_rows(const ConfigFields& fields, Group& group) {
  group.rows_key = fields.full_name("input_activations");
  const std::optional<ConfigFields> rows = fields.object("input_activations");
  if (!rows) return;
  rows->allow_only({"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure",
                    "dynamic", "actorder", "scale_dtype", "zp_dtype", "observer",
                    "observer_kwargs"});
  const std::string type = rows->text_or("type", "int");
  if (type != "int" && type != "float")
    throw rows->error("type", cat("is '", type, "'; known are int, float"));
  group.rows_dtype = type == "int" ? DType::kI8 : DType::kF8E4M3;
  // true, false, or "local": the scales of groups are computed and one for all is stored.
  const bool dynamic = rows->has("dynamic") && *rows->find("dynamic") == true;
  group.rows = dynamic ? RowsQuantised::kDynamic : RowsQuantised::kStatic;
  if (dynamic) return;
  group.rows_key = rows->full_name("dynamic");
  group.rows_value = rows->has("dynamic") ? rows->find("dynamic")->dump() : "absent";
  group.has_input_scale = rows->text_or("strategy", "tensor") == "tensor" &&
                          rows->flag_or("symmetric", true) &&
                          (!rows->has("dynamic") || *rows->find("dynamic") == false);
}

Group read_group(const ConfigFields& fields, const ConfigFields& outer) {
  fields.allow_only({"targets", "weights", "input_activations", "output_activations", "format"});
  Group group;
  group.targets = fields.texts("targets");
  if (group.targets.empty()) throw fields.error("targets", "is missing");
  const std::optional<ConfigFields> weights = fields.object("weights");
  if (!weights) throw fields.error("weights", "is missing");
  weights->allow_only({"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure",
                       "dynamic", "actorder", "scale_dtype", "zp_dtype", "observer",
                       "observer_kwargs"});
  const ConfigFields& format_of = fields.has("format") ? fields : outer;
  const std::string format = format_of.text_or("format", "");
  group.dtype = read_element_type(format_of, format, *weights);
  read_strategy(*weights, group);
  read_rows(fields, group);
  if (fields.has("output_activations"))
    throw fields.error("output_activations", "is not supported");
  group.has_zero_points = !weights->flag_or("symmetric", true);
  const bool has_channels = group.block_rows == 1;
  if (group.has_zero_points &&
      (group.dtype == DType::kF8E4M3 || (group.dtype != DType::kI8 && !has_channels))) {
    throw weights->error("symmetric", "is false, which is not supported for these weights");
  }
  if (weights->has("actorder")) {
    // "weight" concerns the calibration alone; the other order comes with a weight_g_idx.
    const nlohmann::json& order = *weights->find("actorder");
    if (order != false && order != "weight" && order != "static") {
      throw weights->error("actorder", cat("is ", order.dump(), "; supported is \"weight\""));
    }
  }
  return group;
}

QuantizationConfig read_compressed_tensors(const ConfigFields& fields) {
  fields.allow_only({"quant_method", "config_groups", "format", "quantization_status", "ignore",
                     "kv_cache_scheme", "global_compression_ratio", "sparsity_config",
                     "transform_config", "version"});
  const std::string status = fields.text_or("quantization_status", "compressed");
  // Weights that are frozen are stored compressed or not; the tensors tell.
  if (status != "compressed" && status != "frozen") {
    throw fields.error("quantization_status",
                       cat("is '", status, "'; supported are compressed, frozen"));
  }
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const std::optional<ConfigFields> more = fields.object(key);
    if (more && !more->is_empty() && more->text_or("format", "") != "dense") {
      throw fields.error(key, "is not supported");
    }
  }
  QuantizationConfig config = {Method::kCompressedTensors, {}, fields.texts("ignore")};
  for (const ConfigFields& group : fields.objects("config_groups"))
    config.groups.push_back(read_group(group, fields));
  if (config.groups.empty()) throw fields.error("config_groups", "is missing");
  // Names come before classes.
  std::ranges::stable_partition(config.groups, [](const Group& group) {
    return std::ranges::find(group.targets, "Linear") == group.targets.end();
  });
  return config;
}

}  // namespace

std::string_view name(QuantizationConfig::Method method) {
  return kMethods[static_cast<int>(method)];
}

void check_rounding_of_rows(const Group& group, WeightFormat format) {
  const DType rounded = format.quantized_rows();
  const bool rounds = rounded == DType::kI8 || rounded == DType::kF8E4M3;
  const bool uses_scale =
      group.has_input_scale &&
      (format.scheme == Scheme::kFP8 ? group.rows_dtype == DType::kF8E4M3 : rounded == DType::kI8);
  std::string reason;
  if (group.rows == RowsQuantised::kStatic && !uses_scale) {
    reason = cat("is ", group.rows_value, ": rows are rounded by ",
                 group.has_input_scale ? "one scale per tensor" : "scales", " of the checkpoint; ",
                 name(format),
                 rounds ? " rounds them by scales of their own" : " does not round them to 8 bits");
  } else if (rounds && group.rows == RowsQuantised::kPlain) {
    reason = cat("is ", group.rows_value.empty() ? "null" : group.rows_value,
                 ": only the weights are quantised; ", name(format), " also rounds rows to ",
                 name(rounded));
  } else if (rounds && rounded != group.rows_dtype) {
    reason = cat("has rows of ", name(group.rows_dtype), "; ", name(format), " rounds them to ",
                 name(rounded));
  }
  if (reason.empty()) return;
  throw InvalidArgument(cat("key '", group.rows_key, "' ", reason, ". Name the experts' format to ",
                            "accept that (--experts ", name(format), "), or unpack their weights ",
                            "(--experts bf16 or f32)"));
}

QuantizationConfig read_quantization(const ConfigFields& fields, const ConfigFields& model,
                                     Family family) {
  const Method method = read_method(fields);
  const auto read = [&]() -> QuantizationConfig {
    switch (method) {
      case Method::kFp8:
        return read_fp8(fields, model, family);
      case Method::kMxfp4:
        return read_mxfp4(fields, family);
      case Method::kGptq:
        return read_gptq(fields);
      case Method::kAwq:
        return read_awq(fields);
      default:
        return read_compressed_tensors(fields);
    }
  };
  QuantizationConfig config = read();
  try {
    QuantisedModules{config};
  } catch (const InvalidArgument& error) {
    throw fields.error(method == Method::kCompressedTensors ? "ignore" : "modules_to_not_convert",
                       cat("or targets: ", error.what()));
  }
  return config;
}

}  // namespace trimtab
