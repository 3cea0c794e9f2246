// SPDX-License-Identifier: Apache-2.0
// Finds the name that somebody may have meant by one that does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trimtab {

// The name with the fewest letters to change, add, leave out or swap with its neighbour; the first
// of several. Empty when more than a third of the letters would have to change.
std::string_view nearest_name(std::string_view wrong, std::span<const std::string_view> names);
// " (did you mean \"x\"?)", or nothing.
std::string did_you_mean(std::string_view wrong, std::span<const std::string_view> names);

}  // namespace trimtab
