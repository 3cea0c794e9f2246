// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/convert.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/check.h"
#include "cli/plan/inspect.h"
#include "cli/plan/report_facts.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

FileFormat format_by_name(const std::string& file) {
  const std::string end = std::filesystem::path(file).extension().string();
  if (end == ".json") return FileFormat::kJson;
  if (end == ".npy") return FileFormat::kNpy;
  if (end == ".csv") return FileFormat::kCsv;
  if (end == ".jsonl") return FileFormat::kVllm;
  if (end == ".yaml" || end == ".yml") return FileFormat::kTrtllm;
  throw InvalidArgument(
      fmt::format("{}: the name does not say which format to write; give --to", file));
}

// A .npy of two dimensions may be either; then the other format may leave no choice.
bool holds_placement(const ConvertOptions& options, FileKind kind, FileFormat to) {
  if (!options.kind.empty()) return options.kind == "placement";
  if (kind != FileKind::kUnclear) return kind == FileKind::kPlacement;
  if (!info(to).placements) return false;
  if (!info(to).writes_loads) return true;
  throw InvalidArgument(
      fmt::format("{} may be loads or a placement; give --kind loads or --kind placement",
                  options.in.files[0]));
}

void check_has_effect(const ConvertOptions& options, bool is_placement) {
  const auto refuse = [&](const char* option, const char* why) {
    throw UsageError(fmt::format("{}: it has no effect, {} {}", option, options.in.files[0], why));
  };
  if (is_placement && options.experts_per_token > 0)
    refuse("--experts-per-token", "holds a placement");
  if (is_placement && !options.in.recorded_under.empty())
    refuse("--recorded-under", "holds a placement");
  if (is_placement && options.in.tokens_per_step > 0)
    refuse("--tokens-per-step", "holds a placement");
  if (is_placement && !options.in.phase.empty()) refuse("--phase", "holds a placement");
  if (!is_placement && options.ranks > 0 && options.report.empty())
    refuse("--ranks", "holds loads and no --report is asked for");
}

// Pages are those of `trimtab check` and `inspect`.
void write_page(const ConvertOptions& options, const PlacementFile& file) {
  if (options.report.empty()) return;
  const CheckOptions as_check{.placement = options.in.files[0]};
  Report page = check_page(as_check, file, nullptr, check_placement(as_check, file, nullptr));
  set_title(page, "convert", options.in.files[0]);
  write_report(options.report, page);
}
void write_page(const ConvertOptions& options, Recording& loads) {
  if (options.report.empty()) return;
  const InspectOptions as_inspect{.loads = options.in, .ranks = options.ranks};
  const PlacementFile file = inspected_placement(as_inspect, loads);
  Report page =
      inspect_page(as_inspect, loads, file.placement, inspect_loads(as_inspect, loads, file));
  set_title(page, "convert", options.in.files[0]);
  write_report(options.report, page);
}

}  // namespace

void convert(const ConvertOptions& options) {
  check_writable("--report", options.report);
  const std::string& in = options.in.files[0];
  const FileFormat to = options.to.empty() ? format_by_name(options.out) : file_format(options.to);
  DetectedFile found;
  if (options.in.format.empty() || options.kind.empty()) found = detect_format(in);
  if (!options.in.format.empty()) found.format = file_format(options.in.format);
  const std::string from(name(found.format));
  nlohmann::ordered_json report = {
      {"in", valid_utf8(in)}, {"out", valid_utf8(options.out)}, {"from", from}, {"to", name(to)}};
  std::string shape;
  const bool is_placement = holds_placement(options, found.kind, to);
  check_has_effect(options, is_placement);
  if (is_placement) {
    PlacementOptions how = placement_options(in, from, options.ranks);
    how.num_experts = options.in.experts;
    const PlacementFile file = read_placement(in, how);
    write_placement(options.out, file, to);
    write_page(options, file);
    const Placement& placement = file.placement;
    report.update({{"kind", "placement"},
                   {"layers", placement.num_layers()},
                   {"experts", placement.num_experts()},
                   {"ranks", placement.num_ranks()},
                   {"slots", placement.num_slots()}});
    shape = fmt::format("placement of {} layers x {} experts in {} slots on {} ranks",
                        placement.num_layers(), placement.num_experts(), placement.num_slots(),
                        placement.num_ranks());
  } else {
    Recording loads = read_loads(options.in);
    constexpr const char* kTopK = "num_experts_per_token";
    if (options.experts_per_token > 0)
      loads.metadata[kTopK] = std::to_string(options.experts_per_token);
    if (to == FileFormat::kTrtllm && !loads.metadata.contains(kTopK)) {
      throw InvalidArgument(fmt::format("{} does not say {}; give --experts-per-token", in, kTopK));
    }
    write_recording(options.out, loads, to);
    write_page(options, loads);
    report.update({{"kind", "loads"},
                   {"steps", loads.load.num_steps},
                   {"layers", loads.load.num_layers},
                   {"experts", loads.load.num_experts}});
    shape = fmt::format("loads of {} steps x {} layers x {} experts", loads.load.num_steps,
                        loads.load.num_layers, loads.load.num_experts);
  }
  print_report(options.json
                   ? report.dump(1) + "\n"
                   : fmt::format("{} ({}) -> {} ({}): {}\n", printable(valid_utf8(in)), from,
                                 printable(valid_utf8(options.out)), name(to), shape));
}

}  // namespace trimtab::cli
