// SPDX-License-Identifier: Apache-2.0
// The value of `trimtab run --eplb`.
#pragma once

#include <string>
#include <string_view>

namespace trimtab::cli {

struct EplbMode {
  enum class Kind { kOff, kStatic, kRecord, kDynamic, kScreen };

  Kind kind = Kind::kOff;
  std::string file;  // kRecord writes it, the others begin with its placement; may be empty

  bool begins_with_file() const { return kind != Kind::kRecord && !file.empty(); }
  bool balances() const { return kind == Kind::kDynamic || kind == Kind::kScreen; }
};

std::string_view name(EplbMode::Kind kind);

// Reads off, static:FILE, record:FILE, dynamic[:FILE] or screen[:FILE]. Throws InvalidArgument for
// anything else, with the nearest mode.
EplbMode parse_eplb_mode(const std::string& text);

}  // namespace trimtab::cli
