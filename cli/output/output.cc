// SPDX-License-Identifier: Apache-2.0
#include "cli/output/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "trimtab/error.h"

namespace trimtab::cli {

void check_writable(const std::string& option, const std::string& file) {
  if (file.empty()) return;
  const std::filesystem::path path(file);
  std::error_code ignored;  // access() says what is wrong
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const bool in_place = std::filesystem::exists(path, ignored) &&
                        !std::filesystem::is_regular_file(path, ignored);  // a pipe, a device
  const bool writable = access((in_place ? file : parent).c_str(), W_OK) == 0;
  if (writable && !std::filesystem::is_directory(path, ignored)) return;
  throw InvalidArgument(option + " " + file +
                        " can't be written: " + std::strerror(writable ? EISDIR : errno));
}

void print_report(const std::string& report) {
  if (std::fwrite(report.data(), 1, report.size(), stdout) != report.size() ||
      std::fflush(stdout) != 0) {
    throw Error("standard output can't be written");
  }
}

}  // namespace trimtab::cli
