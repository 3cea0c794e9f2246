// SPDX-License-Identifier: Apache-2.0
#include "cli/run/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "files/json.h"
#include "trimtab/require_equal.h"

namespace trimtab::cli {

namespace {

uint64_t digest_of_numbers(std::span<const int32_t> numbers, uint64_t seed) {
  return digest_of(std::as_bytes(numbers), digest_of(std::to_string(numbers.size()), seed));
}

// Names, shapes and the two ends of every tensor: weights of hundreds of gigabytes are not read
// twice for this, and a file of another training differs at the ends as everywhere.
uint64_t digest_of_tensors(const SafeTensors& tensors) {
  constexpr size_t kEnd = 4096;
  uint64_t digest = kDigestSeed;
  for (const std::string& name : tensors.names()) {
    const TensorView& tensor = tensors.at(name);
    digest = digest_of(fmt::format("{} {}", name, static_cast<int>(tensor.dtype)), digest);
    digest = digest_of(std::as_bytes(std::span(tensor.shape)), digest);
    const size_t end = std::min(kEnd, tensor.data.size());
    digest = digest_of(tensor.data.first(end), digest);
    digest = digest_of(tensor.data.last(end), digest);
  }
  return digest;
}

uint64_t digest_of_prompts(std::span<const Prompt> prompts) {
  uint64_t digest = kDigestSeed;
  for (const Prompt& prompt : prompts) digest = digest_of_numbers(prompt.token_ids, digest);
  return digest;
}

uint64_t digest_of_rows(std::span<const std::vector<int32_t>> rows) {
  uint64_t digest = kDigestSeed;
  for (const std::vector<int32_t>& row : rows) digest = digest_of_numbers(row, digest);
  return digest;
}

uint64_t digest_of_placement(const Placement& placement) {
  uint64_t digest = digest_of_numbers(placement.first_slots(), kDigestSeed);
  for (int layer = 0; layer < placement.num_layers(); ++layer)
    digest = digest_of_numbers(placement.logical(layer), digest);
  return digest;
}

// Whether a file is written decides which messages ranks send in the end; which file does not.
std::string given_or_not(const std::string& file) {
  return file.empty() ? "not given" : "given";
}

// A file is read by rank 0 alone.
std::string kind_of_cost(const std::string& cost) {
  return cost == "rows" || cost == "measure" ? cost : given_or_not(cost);
}

}  // namespace

void require_same_run(Communicator& comm, const RunOptions& options, const ModelConfig& model,
                      const SafeTensors& tensors, const EplbSetup& eplb,
                      std::span<const Prompt> prompts, std::span<const std::vector<int32_t>> routes,
                      std::span<const std::vector<int32_t>> stops) {
  const std::string config = options.eplb_config.empty() ? "" : read_text(options.eplb_config);
  const std::string model_config =
      read_text((std::filesystem::path(options.model) / "config.json").string());
  const std::vector<NamedDigest> mine = {
      named_value("the version of trimtab", TRIMTAB_VERSION),
      named_value("--steps", std::to_string(options.steps)),
      named_value("--max-sequences", std::to_string(options.max_sequences)),
      named_value("--tp, --dp, --pcp, --no-ep and --no-sp",
                  fmt::format("{}, {}, {}, {} and {}", options.layout.tp, options.layout.dp,
                              options.layout.pcp, !options.layout.ep, !options.layout.sp)),
      named_value("--dispatcher", options.dispatcher),
      named_value("--wire", options.wire.empty() ? "not given" : options.wire),
      named_value("--dtype", options.formats.dtype),
      named_value("--weights", options.formats.weights),
      named_value("--experts", options.formats.experts),
      named_value("--kv", options.kv),
      named_value("--force-balance", options.force_balance ? "given" : "not given"),
      named_value("--step-tokens", std::to_string(options.step_tokens)),
      named_value("--overlap", options.overlap ? "given" : "not given"),
      named_value("--dry-run", options.dry_run ? "given" : "not given"),
      named_value(
          "--temperature, --top-k, --top-p and --min-p",
          fmt::format("{}, {}, {} and {}", options.sampling.temperature, options.sampling.top_k,
                      options.sampling.top_p, options.sampling.min_p)),
      {"--stop and --stop-ids", digest_of_rows(stops), {}},
      named_value("--seed", std::to_string(options.seed)),
      named_value("--eplb", std::string(name(eplb.mode.kind))),
      named_value("--split", options.split),
      named_value("--cost", kind_of_cost(options.cost)),
      named_value("--trace-out", given_or_not(options.trace_out)),
      named_value("--routes-out", given_or_not(options.routes_out)),
      {"--routes-in", digest_of_rows(routes), {}},
      named_value("--chrome-trace", given_or_not(options.chrome_trace)),
      named_value("--report", given_or_not(options.report)),
      named_value("model_type", model.model_type),
      {"--eplb-config", digest_of(config), {}},
      {"config.json of the model", digest_of(model_config), {}},
      {"the tensors of the model", digest_of_tensors(tensors), {}},
      {"the placement at the start", digest_of_placement(eplb.start), {}},
      {"the prompts", digest_of_prompts(prompts), fmt::format("{} prompts", prompts.size())}};
  require_equal(comm, mine);
}

}  // namespace trimtab::cli
