// SPDX-License-Identifier: Apache-2.0
// For tests that a path does not allocate: link allocation_count.cc into the test, which then
// counts operator new.
#pragma once

#include <cstdint>

namespace trimtab {

// Calls of operator new in this process so far, by all threads.
int64_t allocation_count();

}  // namespace trimtab
