// SPDX-License-Identifier: Apache-2.0
#include "trimtab/workspace.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

std::byte* Workspace::take_bytes(size_t bytes) {
  const size_t need = padded(bytes);
  if (need < bytes || need > buffer_.bytes() - used_) {
    throw InvalidArgument(cat("workspace: ", bytes, " bytes asked for, ", buffer_.bytes() - used_,
                              " left of ", buffer_.bytes(), " reserved; raise max_tokens"));
  }
  std::byte* p = buffer_.data() + used_;
  used_ += need;
  peak_ = std::max(peak_, used_);
  return p;
}

}  // namespace trimtab
