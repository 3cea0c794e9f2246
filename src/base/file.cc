// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path) {
  const int error = errno;
  throw Error(cat("can't ", what, " ", path, ": ", std::strerror(error)));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  // Reports what a delayed write could not do.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// A new file beside path that nobody else writes; its name.
std::pair<int, std::string> open_temporary(const std::string& path) {
  constexpr int kTries =
      1000;  // files that killed writers left behind, and writers at the same moment
  for (int i = 0; i < kTries; ++i) {
    std::string name = cat(path, ".tmp", i);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return {fd, std::move(name)};
    if (errno != EEXIST) fail("create", name);
  }
  throw Error(cat("can't write ", path, ": ", kTries, " temporary files stand beside it"));
}

bool write_all(int fd, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

using Parts = std::initializer_list<std::span<const std::byte>>;

bool write_parts(int fd, Parts parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](auto part) { return write_all(fd, part.data(), part.size()); });
}

// A pipe or a device: there is nothing to replace.
void write_in_place(const std::string& path, Parts parts) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.fd() < 0 || !write_parts(file.fd(), parts) || !file.close()) fail("write", path);
}

void replace_file(const std::string& path, Parts parts) {
  const auto [fd, temporary] = open_temporary(path);
  File file(fd);
  const bool written = write_parts(file.fd(), parts);
  // Synced before the rename: else a crash could leave the new name with no data behind it.
  if (!written || ::fsync(file.fd()) != 0 || !file.close() ||
      std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    fail("write", path);
  }
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path) {
  // Not blocking, so that a pipe is refused below and not waited for.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) fail("open", path);
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0) fail("read", path);
  if (!S_ISREG(info.st_mode)) throw Error(cat("can't read ", path, ": not a regular file"));
  std::vector<std::byte> image(info.st_size);
  size_t got = 0;
  while (got < image.size()) {
    const ssize_t n = ::read(file.fd(), image.data() + got, image.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    if (n == 0) break;  // it shrank; the length check will tell
    got += static_cast<size_t>(n);
  }
  image.resize(got);
  return image;
}

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    write_in_place(path, parts);
    return;
  }
  // Through a link, so that the link stays and its target changes.
  std::error_code no_such_file;
  const std::string target = std::filesystem::canonical(path, no_such_file).string();
  replace_file(no_such_file ? path : target, parts);
}

}  // namespace trimtab
