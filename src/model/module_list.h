// SPDX-License-Identifier: Apache-2.0
// The lists of modules in quantization_config.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/regex.h"
#include "trimtab/checkpoint.h"

namespace trimtab {

class ModuleList {
 public:
  enum class Syntax {
    // Names; "re:" and a regular expression for a beginning of the name; "Linear" for all linear
    // maps.
    kCompressedTensors,
    // Regular expressions for the name or a beginning of it that ends at a dot; or an ending of the
    // name.
    kTransformers
  };

  // Throws InvalidArgument for expressions that Regex refuses.
  ModuleList(const std::vector<std::string>& entries, Syntax syntax);
  bool contains(std::string_view module) const;

 private:
  struct Entry {
    std::string text;
    std::optional<Regex> regex;
  };
  std::vector<Entry> entries_;
  Syntax syntax_;
};

// The modules that a quantization_config quantises.
class QuantisedModules {
 public:
  // config: outlives this. Throws InvalidArgument for expressions that Regex refuses.
  explicit QuantisedModules(const QuantizationConfig& config);
  // The group that says how a module stores its weight; null, and -1: it is not quantised.
  const QuantizationConfig::Group* group_of(std::string_view module) const;
  int index_of_group(std::string_view module) const;

 private:
  const QuantizationConfig& config_;
  std::vector<ModuleList> targets_;  // [groups] the modules of each group
  ModuleList ignore_;
};

}  // namespace trimtab
