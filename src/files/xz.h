// SPDX-License-Identifier: Apache-2.0
// Unpacks files compressed with xz, in builds that found liblzma.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trimtab {

// The limit is more than any recording needs. Without one, a packed file of a megabyte may claim to
// hold seven thousand times as much.
constexpr size_t kMaxUnpacked = size_t{1} << 30;

bool is_xz(std::span<const std::byte> image);

// Returns the content of all streams of the file, one behind the other. Memory grows with the bytes
// that come out, not with the size that the file claims. Throws FormatError, with the byte of the
// packed file, when it is cut off or damaged, when more than max_bytes come out, when unpacking
// needs more memory than any setting of the xz command makes it need, and always in a build without
// liblzma.
std::vector<std::byte> unpack_xz(std::span<const std::byte> image, const std::string& file,
                                 size_t max_bytes = kMaxUnpacked);

}  // namespace trimtab
