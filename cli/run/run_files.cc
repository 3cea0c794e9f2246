// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "files/npy_header.h"
#include "trimtab/decoder.h"
#include "trimtab/error.h"
#include "trimtab/npy.h"
#include "trimtab/recordings.h"
#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

// [steps, layers, experts] as numbers of this type.
template <class Number>
void write_rows(const std::string& file, DType dtype, RunRecorder& rows) {
  FileWriter writer(file);
  const std::vector<int64_t> sizes = {rows.steps(), rows.num_layers(), rows.num_experts()};
  const std::string header = npy_header(dtype, sizes);
  writer.write(std::as_bytes(std::span(header)));
  rows.each_block([&](std::span<const int32_t> block) {
    const std::vector<Number> numbers(block.begin(), block.end());
    writer.write(std::as_bytes(std::span(numbers)));
  });
  writer.commit();
}

Recording recording_of(RunRecorder& rows, const ModelConfig& model) {
  Recording recording;
  recording.load = {rows.steps(), rows.num_layers(), rows.num_experts(), {}};
  rows.each_block([&](std::span<const int32_t> block) {
    recording.load.counts.insert(recording.load.counts.end(), block.begin(), block.end());
  });
  recording.tokens = rows.token_sample();
  recording.phases = rows.phases();
  recording.layer_ids = moe_layer_ids(model);
  recording.step_ids.resize(rows.steps());
  std::iota(recording.step_ids.begin(), recording.step_ids.end(), int64_t{0});
  recording.metadata["model_type"] = model.model_type;
  recording.metadata["num_experts_per_token"] = std::to_string(model.router.top_k);
  return recording;
}

}  // namespace

void write_trace(const std::string& file, RunRecorder& rows) {
  write_rows<int32_t>(file, DType::kI32, rows);
}

void write_routes(const std::string& file, std::span<const Generation> generations,
                  const ModelConfig& model) {
  const std::array<int64_t, 2> of_token = {num_moe_layers(model), model.router.top_k};
  const size_t picks = cells(of_token[0], of_token[1]);
  size_t longest = 0;
  for (const Generation& generation : generations)
    longest = std::max(longest, generation.routes.size());
  std::vector<int32_t> all(generations.size() * longest, -1);
  for (size_t i = 0; i < generations.size(); ++i) {
    std::ranges::copy(generations[i].routes, all.begin() + static_cast<int64_t>(i * longest));
  }
  const std::vector<int64_t> shape = {
      std::ssize(generations), static_cast<int64_t>(longest / picks), of_token[0], of_token[1]};
  write_npy(file, DType::kI32, shape, std::as_bytes(std::span(all)));
}

std::vector<std::vector<int32_t>> read_routes(const std::string& file, size_t num_prompts,
                                              const ModelConfig& model) {
  const NpyArray array = read_npy(file);
  const std::vector<int64_t>& shape = array.shape;
  if (array.dtype != DType::kI32 || shape.size() != 4 || cells(shape[0]) != num_prompts ||
      shape[2] != num_moe_layers(model) || shape[3] != model.router.top_k) {
    throw InvalidArgument(fmt::format(
        "{}: {} [{}], but --routes-in wants int32 [{} prompts, positions, {} MoE layers, {} "
        "experts of a token], as --routes-out has written it for this model and these prompts",
        file, name(array.dtype), fmt::join(shape, ", "), num_prompts, num_moe_layers(model),
        model.router.top_k));
  }
  std::vector<int32_t> all(array.data.size() / sizeof(int32_t));
  std::memcpy(all.data(), array.data.data(), array.data.size());
  const Table<const int32_t> of_prompt(all.data(), shape[0], shape[1] * shape[2] * shape[3]);
  std::vector<std::vector<int32_t>> routes;
  for (int64_t i = 0; i < of_prompt.rows(); ++i)
    routes.emplace_back(of_prompt[i].begin(), of_prompt[i].end());
  return routes;
}

bool records_tokens(const EplbMode& mode) {
  const std::string end = std::filesystem::path(mode.file).extension().string();
  return mode.kind == EplbMode::Kind::kRecord && end != ".npy" && end != ".csv";
}

void write_record(const std::string& file, RunRecorder& rows, const Placement& placement,
                  const ModelConfig& model) {
  std::filesystem::path path(file);
  const std::string end = path.extension().string();
  if (end == ".npy") {
    write_rows<int64_t>(file, DType::kI64, rows);
  } else {
    write_recording(file, recording_of(rows, model),
                    end == ".csv" ? FileFormat::kCsv : FileFormat::kJson);
  }
  write_placement_of(path.replace_extension(".placement.json").string(), placement, model);
}

void write_placement_of(const std::string& file, const Placement& placement,
                        const ModelConfig& model) {
  write_placement(file, {placement, moe_layer_ids(model), {}}, FileFormat::kJson);
}

}  // namespace trimtab::cli
