// SPDX-License-Identifier: Apache-2.0
#include "trimtab/kv_format.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

std::string_view name(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBF16:
      return "bf16";
    case KvFormat::kI8:
      return "i8";
  }
  return "unknown";
}

KvFormat parse_kv_format(std::string_view text) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kI8}) {
    if (name(format) == text) return format;
  }
  throw InvalidArgument(
      cat("unknown format of keys and values '", text, "': choose one of f32, bf16, i8"));
}

}  // namespace trimtab
