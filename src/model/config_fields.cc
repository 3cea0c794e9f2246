// SPDX-License-Identifier: Apache-2.0
#include "model/config_fields.h"

#include <algorithm>
#include <cmath>

namespace trimtab {
namespace {

using nlohmann::json;

// A number with no fraction that fits: some writers put 1.0 for 1.
std::optional<int> as_integer(const json& value, int least, int most) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  if (number != std::floor(number) || number < least || number > most) return std::nullopt;
  return static_cast<int>(number);
}

}  // namespace

std::optional<ConfigFields> ConfigFields::object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) throw error(key, "is not an object");
  return ConfigFields(*value, *file_, cat(prefix_, key, "."));
}

std::vector<ConfigFields> ConfigFields::objects(const std::string& key) const {
  std::vector<ConfigFields> result;
  if (const std::optional<ConfigFields> outer = object(key)) {
    for (const auto& [name, value] : outer->object_->items()) {
      if (!value.is_object()) throw outer->error(name, "is not an object");
      result.emplace_back(value, *file_, cat(outer->prefix_, name, "."));
    }
  }
  return result;
}

void ConfigFields::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : object_->items()) {
    if (std::ranges::find(keys, key) == keys.end()) throw error(key, "is not known");
  }
}

int ConfigFields::integer(const std::string& key, int least, int most) const {
  const json* value = find(key);
  if (value == nullptr) throw error(key, "is missing");
  const std::optional<int> number = as_integer(*value, least, most);
  if (!number)
    throw error(key, cat("is ", value->dump(), ", not an integer in [", least, ", ", most, "]"));
  return *number;
}

float ConfigFields::real_or(const std::string& key, float otherwise, bool zero_is_fine) const {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  using Limits = std::numeric_limits<float>;
  const double number = value->is_number() ? value->get<double>() : -1.0;
  const double least = zero_is_fine ? 0.0 : double{Limits::min()};
  if (!(number >= least && number <= double{Limits::max()})) {
    throw error(key, cat("is ", value->dump(), ", not a ",
                         zero_is_fine ? "number >= 0" : "positive number"));
  }
  return static_cast<float>(number);
}

bool ConfigFields::flag_or(const std::string& key, bool otherwise) const {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) throw error(key, cat("is ", value->dump(), ", not true or false"));
  return value->get<bool>();
}

std::string ConfigFields::text_or(const std::string& key, const std::string& otherwise) const {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) throw error(key, cat("is ", value->dump(), ", not a string"));
  return value->get<std::string>();
}

std::vector<int> ConfigFields::integers(const std::string& key, int least) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int> result;
  for (const json& item : value->is_array() ? *value : json::array({*value})) {
    const std::optional<int> number = as_integer(item, least, std::numeric_limits<int>::max());
    if (!number) throw error(key, cat("holds ", item.dump(), ", not an integer >= ", least));
    result.push_back(*number);
  }
  return result;
}

std::vector<std::string> ConfigFields::texts(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) throw error(key, "is not a list");
  std::vector<std::string> result;
  for (const json& item : *value) {
    if (!item.is_string()) throw error(key, cat("holds ", item.dump(), ", not a string"));
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::string ConfigFields::alias(std::initializer_list<const char*> keys) const {
  const char* chosen = nullptr;
  for (const char* key : keys) {
    if (!has(key)) continue;
    if (chosen == nullptr) chosen = key;
    if (*find(key) != *find(chosen)) {
      throw error(key,
                  cat("is ", find(key)->dump(), ", but '", chosen, "' is ", find(chosen)->dump()));
    }
  }
  return chosen == nullptr ? *keys.begin() : chosen;
}

}  // namespace trimtab
