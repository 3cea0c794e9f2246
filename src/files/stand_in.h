// SPDX-License-Identifier: Apache-2.0
// Recognises small texts that stand in the place of a data file.
#pragma once

#include <string>
#include <string_view>

namespace trimtab {

// Throws FormatError, with the way out, when the text is the pointer that Git LFS or git-annex
// leaves in a clone without the data, or the HTML page that a failed download leaves.
void refuse_stand_in(std::string_view text, const std::string& file);

}  // namespace trimtab
