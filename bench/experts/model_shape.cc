// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/model_shape.h"

#include <array>
#include <charconv>
#include <optional>
#include <system_error>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

// From the config.json of Mixtral-8x7B, Qwen3-30B-A3B, OLMoE-1B-7B, DeepSeek-V3 and gpt-oss-20b.
constexpr std::array<ModelShape, 5> kModels = {{{"mixtral", 4096, 14336, 8, 2},
                                                {"qwen3-30b", 2048, 768, 128, 8},
                                                {"olmoe", 2048, 1024, 64, 8},
                                                {"deepseek-v3", 7168, 2048, 256, 8},
                                                {"gpt-oss-20b", 2880, 2880, 32, 4}}};
constexpr int64_t kMostSide = 1 << 20;

std::string model_names() {
  std::string names;
  for (const ModelShape& model : kModels) names += cat(names.empty() ? "" : ", ", model.name);
  return names;
}

const ModelShape* find_model(std::string_view name) {
  for (const ModelShape& model : kModels) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

std::optional<MatrixShape> read_matrix(std::string_view text) {
  const char* const end = text.data() + text.size();
  MatrixShape shape{};
  const auto [cross, error] = std::from_chars(text.data(), end, shape.out);
  if (error != std::errc() || cross == end || *cross != 'x') return std::nullopt;
  const auto [last, error_in] = std::from_chars(cross + 1, end, shape.in);
  if (error_in != std::errc() || last != end) return std::nullopt;
  if (shape.out < 1 || shape.in < 1 || shape.out > kMostSide || shape.in > kMostSide)
    return std::nullopt;
  return shape;
}

}  // namespace

std::span<const ModelShape> model_shapes() {
  return kModels;
}

Shape parse_shape(const std::string& text) {
  if (const ModelShape* model = find_model(text)) return *model;
  if (const auto matrix = read_matrix(text)) return *matrix;
  throw InvalidArgument(
      cat(text, " is neither a model (", model_names(), ") nor NxK with sides up to ", kMostSide));
}

const ModelShape& parse_model(const std::string& text) {
  if (const ModelShape* model = find_model(text)) return *model;
  throw InvalidArgument(cat(text, " is not a model: ", model_names()));
}

}  // namespace trimtab::bench
