// SPDX-License-Identifier: Apache-2.0
// Loads in the records of vLLM's offline EPLB.
#include <algorithm>

#include "base/quoted.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/readers.h"
#include "recordings/vllm_records.h"

namespace trimtab {
namespace {

// Checks one eplb_load_stats record against the steps before. Returns the number of experts.
int64_t check_step(const VllmRecordReader& reader, const Recording& recording) {
  if (!reader.record.expert_load || !reader.record.p2l_map)
    reader.fail("no expert_load or no p2l_map");
  const IntTable& load = *reader.record.expert_load;
  const IntTable& experts_of_slots = *reader.record.p2l_map;
  if (load.shape != experts_of_slots.shape) {
    reader.fail(cat("expert_load is [", load.shape[0], ", ", load.shape[1], "], p2l_map [",
                    experts_of_slots.shape[0], ", ", experts_of_slots.shape[1], "]"));
  }
  const std::optional<int64_t> step = reader.number("step");
  if (!step) reader.fail("no step");
  if (*step < 0) reader.fail(cat("step ", *step));
  if (!recording.step_ids.empty() && *step <= recording.step_ids.back()) {
    reader.fail(cat("step ", *step, " after ", recording.step_ids.back()));
  }
  const int64_t experts = *std::ranges::max_element(experts_of_slots.values) + 1;
  if (experts == 0) reader.fail("p2l_map: no slot holds an expert");
  if (experts > load.shape[1])
    reader.fail(cat("p2l_map: expert ", experts - 1, " in ", load.shape[1], " slots"));
  if (load.shape[0] > kMaxLayerId) reader.fail(cat(load.shape[0], " layers"));
  return experts;
}

// Adds the logical counts of one step.
void add_step(const VllmRecordReader& reader, Recording& recording) {
  const int64_t experts = check_step(reader, recording);
  const auto load = reader.record.expert_load->rows();
  const auto experts_of_slots = reader.record.p2l_map->rows();
  Load& sum = recording.load;
  if (recording.step_ids.empty()) sum = zero_load(0, load.rows(), experts);
  if (load.rows() != sum.num_layers || experts != sum.num_experts) {
    reader.fail(cat(load.rows(), " layers of ", experts, " experts; the first step has ",
                    sum.num_layers, " of ", sum.num_experts));
  }
  sum.counts.resize(sum.counts.size() + cells(sum.num_layers, experts));
  const Table all_rows(sum.counts, experts);
  const Table rows = all_rows.slice(all_rows.rows() - sum.num_layers, sum.num_layers);
  for (int64_t layer = 0; layer < load.rows(); ++layer) {
    for (int64_t slot = 0; slot < load.cols(); ++slot) {
      const int64_t expert = experts_of_slots(layer, slot);
      if (expert < 0) {
        if (load(layer, slot) == 0) continue;
        reader.fail(cat("layer ", layer, ": slot ", slot, " is empty and has ", load(layer, slot),
                        " tokens"));
      }
      int64_t& count = rows(layer, expert);
      if (__builtin_add_overflow(count, load(layer, slot), &count))
        reader.fail("the counts of an expert's slots sum to more than 63 bits hold");
    }
  }
  recording.step_ids.push_back(*reader.number("step"));
}

}  // namespace

Recording read_vllm_loads(const Content& content, const RecordingOptions& options) {
  VllmRecordReader reader(content);
  Recording recording;
  recording.file = content.file();
  bool has_meta = false;
  std::optional<int64_t> layers;
  while (reader.next()) {
    if (reader.record.type == "eplb_load_meta") {
      if (has_meta || !recording.step_ids.empty())
        reader.fail("eplb_load_meta must come once, and first");
      has_meta = true;
      layers = reader.number("num_layers");
      if (reader.record.model) recording.metadata["model"] = *reader.record.model;
      if (const auto ranks = reader.number("num_ranks"); ranks && *ranks > 0)
        recording.metadata["num_ranks"] = std::to_string(*ranks);
    } else if (reader.record.type == "eplb_load_stats") {
      add_step(reader, recording);
      if (layers && *layers != recording.load.num_layers) {
        reader.fail(cat(recording.load.num_layers, " layers; eplb_load_meta says ", *layers));
      }
    } else {
      reader.fail(
          cat("record_type ", json_quoted(reader.record.type), "; eplb_load_stats expected"));
    }
  }
  if (recording.step_ids.empty())
    throw FormatError(content.file(), -1, "no eplb_load_stats record");
  Load& load = recording.load;
  load.num_steps = std::ssize(recording.step_ids);
  if (options.num_experts != 0 && options.num_experts != load.num_experts) {
    throw FormatError(
        content.file(), -1,
        cat("loads of ", load.num_experts, " experts; ", options.num_experts, " asked for"));
  }
  recording.layer_ids = counted_ids<int>(load.num_layers);
  return checked(std::move(recording));
}

std::string vllm_loads(const Recording& recording) {
  const Load& load = recording.load;
  const auto found = recording.metadata.find("num_ranks");
  const std::string ranks = found == recording.metadata.end() ? "1" : found->second;
  if (ranks.empty() || ranks.find_first_not_of("0123456789") != ranks.npos ||
      ranks.starts_with('0')) {
    throw InvalidArgument(cat("num_ranks '", ranks, "': a number expected"));
  }
  const auto model = recording.metadata.find("model");
  std::string out = cat("{\"record_type\": \"eplb_load_meta\", \"version\": 1, \"model\": ",
                        json_quoted(model == recording.metadata.end() ? "" : model->second),
                        ", \"num_ranks\": ", ranks,
                        ", \"num_groups\": 1, \"num_nodes\": 1, \"num_layers\": ", load.num_layers,
                        ", \"num_redundant_experts\": 0}\n");
  std::string rows = "[";
  for (int layer = 0; layer < load.num_layers; ++layer) {
    if (layer > 0) rows += ", ";
    append_list<int>(rows, counted_ids<int>(load.num_experts));
  }
  for (int64_t step = 0; step < load.num_steps; ++step) {
    out += cat("{\"record_type\": \"eplb_load_stats\", \"version\": 1, \"step\": ",
               recording.step_ids[step], ", \"num_ranks\": ", ranks, ", \"expert_load\": [");
    for (int layer = 0; layer < load.num_layers; ++layer) {
      if (layer > 0) out += ", ";
      append_list(out, load.at(step, layer));
    }
    out += cat("], \"p2l_map\": ", rows, "]}\n");
  }
  return out;
}

}  // namespace trimtab
