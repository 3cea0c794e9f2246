// SPDX-License-Identifier: Apache-2.0
// Files compressed with xz, for builds that found liblzma.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trimtab {

// More than any recording needs. A packed file of a megabyte may claim to hold seven thousand times
// as much.
constexpr size_t kMaxUnpacked = size_t{1} << 30;

bool is_xz(std::span<const std::byte> image);

// What the file holds: all its streams, one behind the other. Memory grows with what has come out,
// not with what the file claims. Throws FormatError, with the byte of the packed file, when it is
// cut off or damaged, when more than max_bytes come out, when unpacking needs more memory than any
// setting of the xz command makes it need, and always in a build without liblzma.
std::vector<std::byte> unpack_xz(std::span<const std::byte> image, const std::string& file,
                                 size_t max_bytes = kMaxUnpacked);

}  // namespace trimtab
