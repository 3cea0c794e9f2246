// SPDX-License-Identifier: Apache-2.0
#include "model/weight_finder.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/cat.h"

namespace trimtab {
namespace {

constexpr int64_t kMxBlock = 32;  // elements that share a scale in the MX formats
constexpr std::string_view kUnsaid = "quantization_config does not say so";

// The elements of this type in an int32.
int64_t per_word(DType dtype) {
  return 32 / bits(dtype);
}

bool is_plain_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a - 1) / b + 1;
}

int64_t cells_of(const TensorView& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

void check_source(const TensorView& tensor, size_t dimensions) {
  if (tensor.shape.size() != dimensions) {
    throw InvalidArgument(
        cat("a tensor of ", tensor.shape.size(), " dimensions in place of ", dimensions));
  }
  if (!is_plain_type(tensor.dtype)) {
    throw InvalidArgument(cat("weights of ", name(tensor.dtype), " in place of F32, BF16 or F16"));
  }
}

}  // namespace

const TensorView& WeightFinder::plain(const std::string& name,
                                      std::span<const int64_t> shape) const {
  if (!tensors_.contains(name)) {
    // Compressed-tensors (int4), mxfp4; GPTQ and AWQ have "qweight" in place of "weight".
    const std::string module = name.substr(0, name.rfind('.'));
    for (const std::string& quantised : {name + "_packed", name + "_blocks", module + ".qweight"}) {
      if (tensors_.contains(quantised))
        throw tensors_.bad_tensor(quantised, cat("is quantised, but ", kUnsaid));
    }
  }
  const TensorView& tensor = at(name);
  if (!is_plain_type(tensor.dtype)) {
    throw tensors_.bad_tensor(
        name, cat("holds ", trimtab::name(tensor.dtype), " in place of F32, BF16 or F16",
                  bits(tensor.dtype) <= 8 ? cat(": ", kUnsaid) : ""));
  }
  return tensors_.at(name, shape);
}

VectorSource WeightFinder::vector(const std::string& name, int64_t size) const {
  return vector_source(plain(name, std::array{size}));
}

std::vector<int64_t> WeightFinder::integers(const std::string& name,
                                            std::span<const int64_t> shape) const {
  const bool wide = tensors_.at(name).dtype == DType::kI64;
  const TensorView& tensor = typed(name, wide ? DType::kI64 : DType::kI32, shape);
  std::vector<int64_t> values(cells_of(tensor));
  for (size_t i = 0; i < values.size(); ++i) {
    int32_t narrow = 0;
    if (wide) {
      std::memcpy(&values[i], tensor.data.data() + i * sizeof(values[i]), sizeof(values[i]));
    } else {
      std::memcpy(&narrow, tensor.data.data() + i * sizeof(narrow), sizeof(narrow));
      values[i] = narrow;
    }
  }
  return values;
}

MatrixSource WeightFinder::matrix(const std::string& module, int64_t rows, int64_t cols) const {
  const std::string weight = module + ".weight";
  const QuantizationConfig::Group* group = modules_.group_of(module);
  if (group == nullptr || is_plain(weight)) {
    const TensorView& tensor = plain(weight, std::array{rows, cols});
    for (const std::string& scale : {weight + "_scale", weight + "_scale_inv"}) {
      if (tensors_.contains(scale)) {
        throw tensors_.bad_tensor(scale, cat("is the scale of quantised weights, but '", weight,
                                             "' holds ", trimtab::name(tensor.dtype)));
      }
    }
    return matrix_source(tensor);
  }
  if (method_ == QuantizationConfig::Method::kGptq) return gptq(module, *group, rows, cols);
  if (method_ == QuantizationConfig::Method::kAwq) return awq(module, *group, rows, cols);
  const bool in_words = group->dtype == DType::kU4 || group->dtype == DType::kU8;
  return in_words ? packed(weight, *group, rows, cols) : stored(weight, *group, rows, cols);
}

float WeightFinder::input_scale(const std::string& module) const {
  const QuantizationConfig::Group* group = modules_.group_of(module);
  if (group == nullptr || !group->has_input_scale || is_plain(module + ".weight")) return 0;
  const std::string name = module + ".input_scale";
  const TensorView& tensor = at(name);
  if (cells_of(tensor) != 1 || !is_plain_type(tensor.dtype)) {
    throw tensors_.bad_tensor(name,
                              cat("holds ", cells_of(tensor), " x ", trimtab::name(tensor.dtype),
                                  " in place of one F32, BF16 or F16"));
  }
  const float scale = VectorSource{tensor.data.data(), tensor.dtype, 1}.at(0);
  if (!(scale > 0.0F && std::isfinite(scale))) throw tensors_.bad_tensor(name, cat("is ", scale));
  return scale;
}

const TensorView& WeightFinder::at(const std::string& name) const {
  const TensorView& tensor = tensors_.at(name);
  if (found_ != nullptr) found_->insert(name);
  return tensor;
}

int WeightFinder::group_of(const std::string& module) const {
  return is_plain(module + ".weight") ? -1 : modules_.index_of_group(module);
}

bool WeightFinder::is_plain(const std::string& weight) const {
  return tensors_.contains(weight) && is_plain_type(tensors_.at(weight).dtype);
}

const TensorView& WeightFinder::typed(const std::string& name, DType dtype,
                                      std::span<const int64_t> shape) const {
  const TensorView& tensor = at(name);
  if (tensor.dtype != dtype) {
    throw tensors_.bad_tensor(
        name, cat("holds ", trimtab::name(tensor.dtype), " in place of ", trimtab::name(dtype)));
  }
  return tensors_.at(name, shape);
}

// The name of the scales: weight_scale_inv for fp8 of DeepSeek, whose scales multiply all the same;
// fp8 without blocks has either name.
std::string WeightFinder::scale_name(const std::string& weight,
                                     const QuantizationConfig::Group& group) const {
  const std::string inverse = weight + "_scale_inv";
  // DeepSeek-V4: beside the weight.
  const std::string beside = weight.substr(0, weight.rfind('.')) + ".scale";
  if (method_ == QuantizationConfig::Method::kFp8 && tensors_.contains(beside)) return beside;
  const bool either = group.scale_of_tensor_or_rows && !tensors_.contains(inverse);
  return method_ == QuantizationConfig::Method::kFp8 && !either ? inverse : weight + "_scale";
}

// Elements of 8 bits, one after the other, or of 4, two in an int8.
MatrixSource WeightFinder::stored(const std::string& weight, const QuantizationConfig::Group& group,
                                  int64_t rows, int64_t cols) const {
  const bool pairs = group.dtype == DType::kF4;
  const int64_t across = pairs ? ceil_div(cols, 2) : cols;
  const TensorView& tensor =
      typed(weight, pairs ? DType::kI8 : group.dtype, std::array{rows, across});
  MatrixSource source = {tensor.data.data(), group.dtype, rows, cols, pairs ? 2 * across : cols, 1};
  set_scales(scale_name(weight, group), group, source);
  if (group.has_zero_points) {
    Quantization& q = source.quantization;
    const std::string name = weight + "_zero_point";
    q.zeros = typed(name, DType::kI8, tensors_.at(weight + "_scale").shape).data.data();
    q.zero_row_stride = q.scale_row_stride;
  }
  return source;
}

// pack-quantized of compressed-tensors: elements along a row, zero points along a column, as many
// in a word as it holds; rows and columns are filled up.
MatrixSource WeightFinder::packed(const std::string& weight, const QuantizationConfig::Group& group,
                                  int64_t rows, int64_t cols) const {
  if (const std::string order = weight + "_g_idx"; tensors_.contains(order)) {
    throw tensors_.bad_tensor(order, "has the columns in another order, which is not supported");
  }
  check_packed_shape(weight + "_shape", rows, cols);
  const int64_t n = per_word(group.dtype), words = ceil_div(cols, n);
  const TensorView& tensor = typed(weight + "_packed", DType::kI32, std::array{rows, words});
  MatrixSource source = {tensor.data.data(), group.dtype, rows, cols, words * n, 1};
  set_scales(weight + "_scale", group, source);
  if (group.has_zero_points) {
    Quantization& q = source.quantization;
    const int64_t across = ceil_div(cols, q.block_cols);
    q.zeros = typed(weight + "_zero_point", DType::kI32, std::array{ceil_div(rows, n), across})
                  .data.data();
    q.zero_rows_per_word = n;
    q.zero_row_stride = across * n;
    q.zero_col_stride = n;
  }
  return source;
}

// What GPTQ and AWQ have in common: scales [groups, rows] and zero points in words of several
// outputs [groups, rows / n].
void WeightFinder::set_groups(const std::string& module, const QuantizationConfig::Group& group,
                              MatrixSource& source) const {
  Quantization& q = source.quantization;
  q.block_cols = group.block_cols == QuantizationConfig::kWhole ? source.cols : group.block_cols;
  const int64_t groups = ceil_div(source.cols, q.block_cols);
  const int64_t n = per_word(group.dtype), words = ceil_div(source.rows, n);
  const TensorView& scales = plain(module + ".scales", std::array{groups, source.rows});
  q.scales = scales.data.data();
  q.scale_dtype = scales.dtype;
  q.scale_row_stride = 1;
  q.scale_col_stride = source.rows;
  q.zeros = typed(module + ".qzeros", DType::kI32, std::array{groups, words}).data.data();
  q.zero_row_stride = 1;
  q.zero_col_stride = words * n;
  q.zero_offset = group.zero_offset;
}

// Words of several inputs, [cols / n, rows].
MatrixSource WeightFinder::gptq(const std::string& module, const QuantizationConfig::Group& group,
                                int64_t rows, int64_t cols) const {
  const int64_t n = per_word(group.dtype);
  const TensorView& words =
      typed(module + ".qweight", DType::kI32, std::array{ceil_div(cols, n), rows});
  MatrixSource source = {words.data.data(), group.dtype, rows, cols, n, n * rows};
  source.cols_per_word = n;
  set_groups(module, group, source);
  if (!tensors_.contains(module + ".g_idx")) return source;
  Quantization& q = source.quantization;
  q.column_blocks = typed(module + ".g_idx", DType::kI32, std::array{cols}).data.data();
  bool in_order = true;
  for (int64_t j = 0; j < cols; ++j)
    in_order = in_order && source.block_of_column(j) == j / q.block_cols;
  if (in_order) q.column_blocks = nullptr;
  return source;
}

// Words of eight outputs, [cols, rows / 8].
MatrixSource WeightFinder::awq(const std::string& module, const QuantizationConfig::Group& group,
                               int64_t rows, int64_t cols) const {
  const int64_t n = per_word(group.dtype), across = ceil_div(rows, n);
  const TensorView& words = typed(module + ".qweight", DType::kI32, std::array{cols, across});
  MatrixSource source = {words.data.data(), group.dtype, rows, cols, 1, across * n};
  source.even_rows_first = true;
  set_groups(module, group, source);
  return source;
}

void WeightFinder::check_packed_shape(const std::string& name, int64_t rows, int64_t cols) const {
  const std::vector<int64_t> shape = integers(name, std::array{int64_t{2}});
  if (shape[0] != rows || shape[1] != cols) {
    throw tensors_.bad_tensor(
        name, cat("says [", shape[0], ", ", shape[1], "] in place of [", rows, ", ", cols, "]"));
  }
}

void WeightFinder::set_scales(const std::string& name, const QuantizationConfig::Group& group,
                              MatrixSource& source) const {
  Quantization& q = source.quantization;
  q.block_rows = group.block_rows == QuantizationConfig::kWhole ? source.rows : group.block_rows;
  q.block_cols = group.block_cols == QuantizationConfig::kWhole ? source.cols : group.block_cols;
  const TensorView& tensor = at(name);
  if (group.scale_of_tensor_or_rows) {
    const bool one = cells_of(tensor) == 1;
    const bool of_rows = cells_of(tensor) == source.rows && tensor.shape.size() <= 2 &&
                         tensor.shape[0] == source.rows;
    if (!one && !of_rows) {
      throw tensors_.bad_tensor(
          name, cat("holds ", cells_of(tensor), " scales; without weight_block_size there is one ",
                    "per tensor, or one for each of ", source.rows, " rows"));
    }
    q.block_rows = one ? source.rows : 1;
    q.block_cols = source.cols;
  }
  if (!is_plain_type(tensor.dtype) && tensor.dtype != DType::kF8E8M0) {
    throw tensors_.bad_tensor(
        name, cat("holds ", trimtab::name(tensor.dtype), " in place of F32, BF16, F16 or F8_E8M0"));
  }
  const int64_t down = ceil_div(source.rows, q.block_rows),
                across = ceil_div(source.cols, q.block_cols);
  // One scale a row, or one for all, may come without the dimensions of size 1.
  if (tensor.shape.size() == 1 && across == 1) {
    tensors_.at(name, std::array{down});
  } else if (!tensor.shape.empty() || down * across != 1) {
    tensors_.at(name, std::array{down, across});
  }
  q.scales = tensor.data.data();
  q.scale_dtype = tensor.dtype;
  q.scale_row_stride = across;
}

MatrixSource WeightFinder::mxfp4(const std::string& module, const std::string& name,
                                 int64_t experts, int64_t rows, int64_t cols) const {
  const std::string blocks = cat(module, ".", name, "_blocks"),
                    scales = cat(module, ".", name, "_scales");
  const QuantizationConfig::Group* group = modules_.group_of(module);
  if (group == nullptr || group->dtype != DType::kF4) {
    throw tensors_.bad_tensor(blocks, cat("is quantised, but ", kUnsaid));
  }
  const int64_t across = ceil_div(cols, kMxBlock);
  const TensorView& data =
      typed(blocks, DType::kU8, std::array{experts, rows, across, kMxBlock / 2});
  MatrixSource source = {data.data.data(), DType::kF4, experts * rows, cols, across * kMxBlock, 1};
  Quantization& q = source.quantization;
  q.scales = typed(scales, DType::kU8, std::array{experts, rows, across}).data.data();
  q.scale_dtype = DType::kF8E8M0;
  q.block_cols = kMxBlock;
  q.scale_row_stride = across;
  return source;
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
