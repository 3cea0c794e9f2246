// SPDX-License-Identifier: Apache-2.0
#include "model/module_list.h"

#include <algorithm>

namespace trimtab {
namespace {

// An expression without operators but the dot: most entries are such, and lists of them may be
// long.
bool is_name(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '.' || c == '-';
  });
}

bool begins_with_name(std::string_view module, std::string_view name) {
  return module.size() >= name.size() &&
         std::ranges::equal(name, module.substr(0, name.size()),
                            [](char a, char b) { return a == b || a == '.'; });
}

bool is_border(std::string_view module, size_t at) {
  return at == module.size() || module[at] == '.' || (at > 0 && module[at - 1] == '.');
}

}  // namespace

ModuleList::ModuleList(const std::vector<std::string>& entries, Syntax syntax) : syntax_(syntax) {
  constexpr std::string_view kMark = "re:";
  for (const std::string& text : entries) {
    Entry entry = {text, std::nullopt};
    if (syntax == Syntax::kTransformers) {
      if (!is_name(text)) entry.regex.emplace(text);
    } else if (text.starts_with(kMark)) {
      entry.regex.emplace(std::string_view(text).substr(kMark.size()));
    }
    entries_.push_back(std::move(entry));
  }
}

bool ModuleList::contains(std::string_view module) const {
  const auto at_border = [&](size_t end) { return is_border(module, end); };
  const auto anywhere = [](size_t) { return true; };
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    if (syntax_ == Syntax::kCompressedTensors) {
      return entry.regex ? entry.regex->match(module, anywhere)
                         : entry.text == module || entry.text == "Linear";
    }
    if (module.ends_with(entry.text)) return true;
    if (entry.regex) return entry.regex->match(module, at_border);
    return begins_with_name(module, entry.text) && at_border(entry.text.size());
  });
}

QuantisedModules::QuantisedModules(const QuantizationConfig& config)
    : config_(config),
      ignore_(config.ignore, config.method == QuantizationConfig::Method::kCompressedTensors
                                 ? ModuleList::Syntax::kCompressedTensors
                                 : ModuleList::Syntax::kTransformers) {
  for (const QuantizationConfig::Group& group : config.groups) {
    targets_.emplace_back(group.targets, ModuleList::Syntax::kCompressedTensors);
  }
}

int QuantisedModules::index_of_group(std::string_view module) const {
  if (ignore_.contains(module)) return -1;
  for (int i = 0; i < std::ssize(targets_); ++i) {
    if (targets_[i].contains(module)) return i;
  }
  return -1;
}

const QuantizationConfig::Group* QuantisedModules::group_of(std::string_view module) const {
  const int index = index_of_group(module);
  return index < 0 ? nullptr : &config_.groups[index];
}

}  // namespace trimtab
