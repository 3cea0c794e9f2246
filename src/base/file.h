// SPDX-License-Identifier: Apache-2.0
// Whole files in and out.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace trimtab {

// Throws Error when the file can't be read or is no regular file.
std::vector<std::byte> read_file(const std::string& path);

// The parts one after the other, to a temporary file beside path that is then renamed, so a reader
// never sees half a file and a failed write leaves the old one. A link stays and its target is
// replaced; a pipe or a device is written to as it is. Throws Error on I/O failure.
void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace trimtab
