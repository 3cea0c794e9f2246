// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_files.h"

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "files/npy_header.h"
#include "trimtab/decoder.h"
#include "trimtab/recordings.h"

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
