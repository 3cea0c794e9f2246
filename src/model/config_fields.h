// SPDX-License-Identifier: Apache-2.0
// Typed access to the keys of a config.json. Everything that is not as it should be is a
// FormatError naming the key. A key with the value null counts as absent, as it does for
// transformers.
#pragma once

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cat.h"
#include "trimtab/checkpoint.h"
#include "trimtab/error.h"

namespace trimtab {

class ConfigFields {
 public:
  // object, file: stay the caller's. prefix: of the keys in errors, "text_config." in a nested
  // object.
  ConfigFields(const nlohmann::json& object, const std::string& file, std::string prefix = "")
      : object_(&object), file_(&file), prefix_(std::move(prefix)) {}

  FormatError error(const std::string& key, const std::string& what) const {
    return {*file_, -1, cat("key '", full_name(key), "' ", what)};
  }

  // Null when absent.
  const nlohmann::json* find(const std::string& key) const {
    const auto found = object_->find(key);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
  }
  bool is_empty() const { return object_->empty(); }
  // The key as errors name it.
  std::string full_name(const std::string& key) const { return prefix_ + key; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  bool is_null(const std::string& key) const { return !has(key) && object_->contains(key); }
  std::optional<ConfigFields> object(const std::string& key) const;
  // The objects in an object, by key.
  std::vector<ConfigFields> objects(const std::string& key) const;
  // Throws for a key that is not one of these.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  // In [least, most].
  int integer(const std::string& key, int least, int most = std::numeric_limits<int>::max()) const;
  int integer_or(const std::string& key, int otherwise, int least,
                 int most = std::numeric_limits<int>::max()) const {
    return has(key) ? integer(key, least, most) : otherwise;
  }
  // Finite, and positive unless zero is told to be fine.
  float real_or(const std::string& key, float otherwise, bool zero_is_fine = false) const;
  bool flag_or(const std::string& key, bool otherwise) const;
  std::string text_or(const std::string& key, const std::string& otherwise) const;
  // A list of integers; one integer counts as a list of one. Empty when absent.
  std::vector<int> integers(const std::string& key, int least) const;
  // A list of strings. Empty when absent.
  std::vector<std::string> texts(const std::string& key) const;

  // The key out of a list of aliases that is there (the first one where none is). Throws when two
  // are there and differ.
  std::string alias(std::initializer_list<const char*> keys) const;

 private:
  const nlohmann::json* object_;
  const std::string* file_;
  std::string prefix_;
};

// Parts of parse_model_config. family, hidden_size and num_hidden_layers are there already.
void read_attention(const ConfigFields& fields, ModelConfig& config);
void read_rope(const ConfigFields& fields, ModelConfig& config);
// fields: of quantization_config; model: of the whole.
QuantizationConfig read_quantization(const ConfigFields& fields, const ConfigFields& model,
                                     Family family);
QuantizationConfig read_gptq(const ConfigFields& fields);
QuantizationConfig read_awq(const ConfigFields& fields);

}  // namespace trimtab
