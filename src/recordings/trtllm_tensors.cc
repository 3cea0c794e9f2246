// SPDX-License-Identifier: Apache-2.0
#include "recordings/trtllm_tensors.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/cat.h"
#include "recordings/ids.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// "12_3"; nullopt for anything else.
std::optional<TrtllmKey> parse_key(std::string_view name) {
  TrtllmKey key;
  const auto parse = [](std::string_view digits, auto& value) {
    const char* end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, value);
    return result.ec == std::errc() && result.ptr == end && value >= 0;
  };
  const size_t bar = name.find('_');
  if (bar == name.npos || !parse(name.substr(0, bar), key.first) ||
      !parse(name.substr(bar + 1), key.second) || key.second > kMaxLayerId) {
    return std::nullopt;
  }
  return key;
}

template <class T>
int64_t element(std::span<const std::byte> data, int64_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return std::in_range<int64_t>(value) ? static_cast<int64_t>(value) : -1;
}

using Element = int64_t (*)(std::span<const std::byte>, int64_t);
Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return element<uint8_t>;
    case DType::kI16:
      return element<int16_t>;
    case DType::kI32:
      return element<int32_t>;
    case DType::kU32:
      return element<uint32_t>;
    case DType::kI64:
      return element<int64_t>;
    case DType::kU64:
      return element<uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

void TrtllmTensor::check_whole_numbers() const {
  if (element_of(view_.dtype) == nullptr) fail("whole numbers expected");
}

int64_t TrtllmTensor::operator[](int64_t i) const {
  return element_of(view_.dtype)(view_.data, i);
}

void TrtllmTensor::fail(const std::string& what) const {
  throw FormatError(*file_, at_, cat("tensor ", *name_, ": ", what));
}

TrtllmFile::TrtllmFile(std::span<const std::byte> image, const std::string& file)
    : name_(&file), views_(parse_safetensors(image, file)) {
  std::map<TrtllmKey, const std::string*> seen;  // "1_2" and "01_2" are one
  for (const auto& [name, view] : views_) {
    const TrtllmTensor tensor(name, view, file, view.data.data() - image.data());
    const std::optional<TrtllmKey> key = parse_key(name);
    if (!key) tensor.fail("a name {iteration}_{layer} expected");
    const auto [found, is_new] = seen.emplace(*key, &name);
    if (!is_new) tensor.fail(cat("the same as ", *found->second));
    tensors_.emplace(*key, tensor);
  }
  if (tensors_.empty()) throw FormatError(file, -1, "no statistics");
}

}  // namespace trimtab
