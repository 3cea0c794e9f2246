// SPDX-License-Identifier: Apache-2.0
// Reads and writes whole files.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace trimtab {

// Throws Error when the file can't be read or is no regular file.
std::vector<std::byte> read_file(const std::string& path);

// Writes the parts one after the other to a temporary file beside path and renames it to path. So a
// reader never sees half a file, and a failed write leaves the old one. The new file has the mode
// of the one that it replaces, and its owner where the system allows that. A link stays and its
// target is replaced. A pipe or a device is not replaced but written to. Throws Error on I/O
// failure.
void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace trimtab
