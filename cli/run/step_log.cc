// SPDX-License-Identifier: Apache-2.0
#include "cli/run/step_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("can't {} a temporary file in {}: {}", what,
                          std::filesystem::temp_directory_path().string(), std::strerror(errno)));
}

int open_nameless_file() {
  std::string name = (std::filesystem::temp_directory_path() / "trimtab-XXXXXX").string();
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) fail("create");
  ::unlink(name.c_str());
  return fd;
}

// A block of one writer is at most 64 KiB, all blocks together 16 MiB, unless one row is more.
int64_t steps_of_a_block(int writers, int64_t row) {
  const int64_t bytes = std::min<int64_t>(1 << 16, (1 << 24) / std::max(writers, 1));
  return std::max<int64_t>(bytes / std::max<int64_t>(row * int64_t{sizeof(int32_t)}, 1), 1);
}

}  // namespace

StepLog::StepLog(int writers, int64_t row)
    : fd_(open_nameless_file()),
      row_(row),
      block_steps_(steps_of_a_block(writers, row)),
      writers_(writers) {}

StepLog::~StepLog() {
  ::close(fd_);
}

int64_t StepLog::offset(int writer, int64_t block) const {
  return (block * std::ssize(writers_) + writer) * block_steps_ * row_ * int64_t{sizeof(int32_t)};
}

void StepLog::append(int writer, std::span<const int32_t> values) {
  Writer& to = writers_[writer];
  to.block.insert(to.block.end(), values.begin(), values.end());
  ++to.steps;
  if (to.steps % block_steps_ != 0) return;
  const auto bytes = std::as_bytes(std::span(to.block));
  int64_t at = offset(writer, to.steps / block_steps_ - 1);
  for (auto left = bytes; !left.empty();) {
    const ssize_t n = ::pwrite(fd_, left.data(), left.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    left = left.subspan(n);
    at += n;
  }
  to.block.clear();
}

std::span<const int32_t> StepLog::read(int writer, int64_t first) {
  const Writer& from = writers_[writer];
  const int64_t steps = std::clamp<int64_t>(from.steps - first, 0, block_steps_);
  if (steps < block_steps_) return std::span(from.block).first(steps * row_);
  read_.resize(steps * row_);
  int64_t at = offset(writer, first / block_steps_);
  for (auto left = std::as_writable_bytes(std::span(read_)); !left.empty();) {
    const ssize_t n = ::pread(fd_, left.data(), left.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("read");
    left = left.subspan(n);
    at += n;
  }
  return read_;
}

}  // namespace trimtab::cli
