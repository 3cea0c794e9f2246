// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "model/config_fields.h"
#include "model/sampler.h"

namespace trimtab {

Sampling read_sampling(const std::string& directory) {
  const std::string file = (std::filesystem::path(directory) / "generation_config.json").string();
  if (!std::filesystem::exists(file))
    throw InvalidArgument(file + " does not exist, so the model does not say how to sample");
  const nlohmann::json root = read_json(file);
  if (!root.is_object()) throw FormatError(file, -1, "is not a JSON object");
  const ConfigFields fields(root, file);
  Sampling sampling;
  if (!fields.flag_or("do_sample", false)) return sampling;
  sampling = {.temperature = fields.real_or("temperature", 1.0F),
              .top_k = std::max(fields.integer_or("top_k", 0, -1), 0),
              .top_p = fields.real_or("top_p", 1.0F),
              .min_p = fields.real_or("min_p", 0.0F, true)};
  try {
    check(sampling);
  } catch (const InvalidArgument& error) {
    throw FormatError(file, -1, error.what());
  }
  return sampling;
}

}  // namespace trimtab
