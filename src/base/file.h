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

// Writes a file piece by piece. It is a temporary file beside `path` until commit() renames it to
// path, so a reader never sees half a file, and a failed write leaves the old one. The new file has
// the mode of the one that it replaces, and its owner where the system allows that. A link stays
// and its target is replaced. A pipe or a device is not replaced but written to.
class FileWriter {
 public:
  // Throws Error when no file can be made there.
  explicit FileWriter(const std::string& path);
  // Leaves nothing when commit() was not called.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Both throw Error on I/O failure.
  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  void discard() noexcept;

  std::string path_;       // as the caller calls it
  std::string target_;     // behind links
  std::string temporary_;  // empty: the file is written in place, or nothing is left to rename
  int slot_ = -1;          // in the list of unfinished files
  int fd_ = -1;
};

// Writes the parts one after the other, as a FileWriter. Throws Error on I/O failure.
void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

// Removes the temporary files of all FileWriters of the process. A signal handler may call it,
// right before the process ends.
void remove_unfinished_files() noexcept;

}  // namespace trimtab
