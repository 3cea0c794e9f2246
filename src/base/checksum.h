// SPDX-License-Identifier: Apache-2.0
// A fast 64-bit checksum for large blocks: against broken memory, lost writes and mistaken buffers,
// not against people. Another one on a machine of another byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trimtab {

// Any change within 8 aligned bytes, and so any one flipped bit, changes it; others do but for one
// in 2^64. Bytes beyond the last 8 count as if zeros followed; the length counts too.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace trimtab
