// SPDX-License-Identifier: Apache-2.0
#include "cli/run/eplb.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/nearest_name.h"
#include "trimtab/dispatcher_kind.h"
#include "trimtab/error.h"
#include "trimtab/recordings.h"
#include "trimtab/table.h"

namespace trimtab::cli {
namespace {

enum class HasFile : uint8_t { kNo, kMay, kMust };
struct Mode {
  EplbMode mode;
  std::string_view name;
  HasFile file;
};
constexpr std::array<Mode, 5> kModes = {{{EplbMode::kOff, "off", HasFile::kNo},
                                         {EplbMode::kStatic, "static", HasFile::kMust},
                                         {EplbMode::kRecord, "record", HasFile::kMust},
                                         {EplbMode::kDynamic, "dynamic", HasFile::kMay},
                                         {EplbMode::kScreen, "screen", HasFile::kMay}}};

void read_mode(const std::string& text, Eplb& eplb) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto* const found = std::ranges::find(kModes, name, &Mode::name);
  if (found == kModes.end()) {
    std::vector<std::string_view> names;
    for (const Mode& mode : kModes) names.push_back(mode.name);
    throw InvalidArgument(
        fmt::format("--eplb must be off, static:FILE, record:FILE, dynamic[:FILE] or "
                    "screen[:FILE], not \"{}\"{}",
                    text, did_you_mean(name, names)));
  }
  const bool is_given = colon != text.npos, is_empty = is_given && colon + 1 == text.size();
  if (is_given && found->file == HasFile::kNo) {
    throw InvalidArgument(fmt::format("--eplb {} takes no file", name));
  }
  if (is_empty || (!is_given && found->file == HasFile::kMust)) {
    throw InvalidArgument(fmt::format("--eplb {} needs a file: {}:FILE", name, name));
  }
  eplb.mode = found->mode;
  if (is_given) eplb.file = text.substr(colon + 1);
}

BalancerConfig read_config(const std::string& file) {
  if (file.empty()) return parse_balancer_config(R"({"preset": "short"})", "");
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) throw FormatError(file, -1, "can't be read");
  return parse_balancer_config(text, file);
}

Placement read_map(const std::string& file, int layers, int experts, int ranks) {
  PlacementOptions options;
  options.format = detect_format(file).format;
  if (options.format != FileFormat::kJson && options.format != FileFormat::kVllmAscend)
    options.num_ranks = ranks;
  Placement placement = read_placement(file, options).placement;
  if (placement.num_layers() != layers || placement.num_experts() != experts ||
      placement.num_ranks() != ranks) {
    throw InvalidArgument(
        fmt::format("{} is for {} layers of {} experts on {} ranks, this run has {} of {} on {}",
                    file, placement.num_layers(), placement.num_experts(), placement.num_ranks(),
                    layers, experts, ranks));
  }
  return placement;
}

std::vector<int> moe_layer_ids(const ModelConfig& model) {
  std::vector<int> ids;
  for (int l = 0; l < model.num_hidden_layers; ++l) {
    if (model.is_moe_layer[l]) ids.push_back(l);
  }
  return ids;
}

// Experts in order, the first ones once more as replicas: slots are as even as they go.
Placement starting_map(int layers, int experts, int redundant, int ranks) {
  if (redundant == 0) return Placement::linear(layers, experts, ranks);
  std::vector<int> slots;
  for (int r = 0; r < ranks; ++r) {
    slots.push_back((r + 1) * (experts + redundant) / ranks - r * (experts + redundant) / ranks);
  }
  return default_placement(layers, experts, std::move(slots));
}

// Does the dispatcher share picks out over replicas? "auto" takes one that does where it has to.
bool shares_out(const std::string& dispatcher) {
  return dispatcher == "auto" || dispatcher_kind(dispatcher).shares_out;
}

}  // namespace

Eplb read_eplb(const EplbOptions& options, const ModelConfig& model, int ranks,
               const std::string& dispatcher) {
  const int layers = num_moe_layers(model), experts = model.router.num_experts;
  Eplb eplb{.start = Placement::linear(layers, experts, ranks)};
  read_mode(options.mode, eplb);
  eplb.config = read_config(options.config);
  eplb.config.screen = eplb.mode == EplbMode::kScreen;
  if (options.redundant_experts > 1 << 20) {
    throw InvalidArgument(
        fmt::format("--redundant-experts {} is too many", options.redundant_experts));
  }
  if (eplb.begins_with_file()) {
    if (options.redundant_experts >= 0)
      throw InvalidArgument("--redundant-experts: the map of --eplb says it");
    eplb.start = read_map(eplb.file, layers, experts, ranks);
  } else {
    const int by_default = eplb.balances() ? ranks : 0;
    const int redundant = options.redundant_experts < 0 ? by_default : options.redundant_experts;
    eplb.start = starting_map(layers, experts, redundant, ranks);
  }
  if (eplb.start.num_slots() > experts || eplb.balances()) {
    eplb.split = shares_out(dispatcher) ? eplb.config.split : SplitRule::kStatic;
    if (eplb.split != eplb.config.split && !options.config.empty()) {
      throw InvalidArgument(
          fmt::format("dispatcher {} can't share tokens out over replicas; use auto, {}, "
                      "or \"split\": \"static\" in {}",
                      dispatcher, dispatcher_names([](const DispatcherKind& kind) {
                        return kind.shares_out && kind.format != Format::kBatched;
                      }),
                      options.config));
    }
    eplb.config.split = eplb.split;
  }
  return eplb;
}

void write_map(const std::string& file, const Placement& placement, const ModelConfig& model) {
  write_placement(file, {placement, moe_layer_ids(model), {}}, FileFormat::kJson);
}

void write_record(const Eplb& eplb, const Load& load, const ModelConfig& model) {
  Recording recording;
  recording.load = load;
  recording.layer_ids = moe_layer_ids(model);
  recording.step_ids.resize(load.num_steps);
  std::iota(recording.step_ids.begin(), recording.step_ids.end(), int64_t{0});
  recording.metadata["model_type"] = model.model_type;
  recording.metadata["num_experts_per_token"] = std::to_string(model.router.top_k);
  const std::filesystem::path path(eplb.file);
  const std::string end = path.extension().string();
  const FileFormat format = end == ".npy"   ? FileFormat::kNpy
                            : end == ".csv" ? FileFormat::kCsv
                                            : FileFormat::kJson;
  write_recording(eplb.file, recording, format);
  write_map(std::filesystem::path(path).replace_extension(".placement.json").string(), eplb.start,
            model);
}

std::string_view name(EplbMode mode) {
  return std::ranges::find(kModes, mode, &Mode::mode)->name;
}

Load sum_of_ranks(const Placement& placement, int64_t steps,
                  std::span<const std::span<const int32_t>> counts_of_rank) {
  Load load{steps, placement.num_layers(), placement.num_experts(), {}};
  load.counts.resize(cells(steps, load.num_layers, load.num_experts));
  for (const auto& counts : counts_of_rank)
    std::ranges::transform(load.counts, counts, load.counts.begin(), std::plus());
  return load;
}

EplbRank::EplbRank(const Eplb& eplb, Decoder& decoder, ExpertSlots* slots, size_t expert_bytes,
                   int64_t max_steps, Watchers watchers)
    : start_(eplb.start),
      rank_(decoder.comm().rank()),
      recorder_(start_.num_layers(), start_.slots_of_rank(rank_), 0),
      counts_(cells(max_steps, start_.num_layers(), start_.num_experts())) {
  if (!eplb.balances()) return;
  const auto hosts = decoder.comm().hosts();
  Balancer::Parts parts = {.placement = start_,
                           .topology = {.node_of_rank = {hosts.begin(), hosts.end()}},
                           .slots = slots,
                           .format = decoder.format(),
                           .expert_bytes = static_cast<int64_t>(expert_bytes),
                           .place =
                               [&decoder](int layer, std::shared_ptr<const Experts> experts,
                                          std::shared_ptr<const SplitTable> replicas) {
                                 decoder.replace_layer(layer, std::move(experts),
                                                       std::move(replicas));
                               },
                           .trace = watchers.trace,
                           .step_trace = watchers.step_trace};
  balancer_.emplace(eplb.config, std::move(parts), decoder.comm());
}

LoadRecorder* EplbRank::before_step(const Step& step) {
  if (balancer_) {
    balancer_->before_step(step.phase, step.statuses);
    return &balancer_->recorder();
  }
  recorder_.begin_step(step.phase);
  return &recorder_;
}

void EplbRank::after_step() {
  LoadRecorder& recorder = balancer_ ? balancer_->recorder() : recorder_;
  const Placement& now = placement();
  const auto experts = static_cast<size_t>(now.num_experts());
  const auto layers = static_cast<size_t>(now.num_layers());
  for (size_t layer = 0; layer < layers; ++layer) {
    const auto rows = recorder.counts(static_cast<int>(layer));
    const auto held = now.logical(static_cast<int>(layer)).subspan(now.first_slot(rank_));
    int32_t* const into = counts_.data() + (static_cast<size_t>(steps_) * layers + layer) * experts;
    for (size_t s = 0; s < rows.size(); ++s) into[held[s]] += rows[s];
  }
  ++steps_;
  balancer_ ? balancer_->after_step() : recorder_.keep_step();
}

void EplbRank::finish() {
  balancer_.reset();
}

void EplbRank::write_metrics(const std::string& file) {
  // They change with what happens, and with each window that is gathered.
  const BalanceMetrics& metrics = balancer_->metrics();
  const auto now = std::pair(
      balancer_->events().size(),
      std::accumulate(metrics.rank_tokens.begin(), metrics.rank_tokens.end(), int64_t{0}));
  if (now == metrics_written_) return;
  trimtab::write_metrics(file, metrics);
  metrics_written_ = now;
}

std::span<const int32_t> EplbRank::counts() const {
  const size_t row = cells(start_.num_layers(), start_.num_experts());
  return std::span(counts_).first(static_cast<size_t>(steps_) * row);
}

}  // namespace trimtab::cli
