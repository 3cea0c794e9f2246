// SPDX-License-Identifier: Apache-2.0
// How a sequence's keys and values are kept.
#pragma once

#include <string_view>

namespace trimtab {

enum class KvFormat {
  kF32,   // as they are computed
  kBF16,  // rounded to nearest, ties to even: half of the memory
  kI8     // each key and each value of a head in whole 127ths of its largest element, with a scale
          // of its own: about a quarter of the memory
};

// "f32", "bf16", "i8".
std::string_view name(KvFormat format);
// Throws InvalidArgument with the list.
KvFormat parse_kv_format(std::string_view name);

}  // namespace trimtab
