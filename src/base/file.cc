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

// Throws an Error for the errno of now. doing: what failed, e.g. "open".
[[noreturn]] void fail(const char* doing, const std::string& path) {
  const int error = errno;
  throw Error(cat("can't ", doing, " ", path, ": ", std::strerror(error)));
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
  // Returns false when a delayed write failed.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// Creates a file beside path that nobody else writes. Returns its descriptor and its name.
std::pair<int, std::string> open_temporary(const std::string& path, mode_t mode) {
  // Killed writers leave such files behind, and others may write at the same moment.
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    std::string name = cat(path, ".tmp", i);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0) return {fd, std::move(name)};
    if (errno != EEXIST) fail("create", name);
  }
  throw Error(cat("can't write ", path, ": ", kTries, " temporary files stand beside it"));
}

bool write_all(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data = data.subspan(n);
  }
  return true;
}

using Parts = std::initializer_list<std::span<const std::byte>>;

bool write_parts(int fd, Parts parts) {
  return std::all_of(parts.begin(), parts.end(), [&](auto part) { return write_all(fd, part); });
}

// Writes to a pipe or a device, which can't be replaced.
void write_in_place(const std::string& path, Parts parts) {
  File file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.fd() < 0 || !write_parts(file.fd(), parts) || !file.close()) fail("write", path);
}

// Gives the new file the mode of the old one, and its owner and group where that is allowed.
bool take_over_mode(int fd, const struct stat& old) {
  struct stat now = {};
  if (::fstat(fd, &now) != 0) return false;
  const bool other_owner = now.st_uid != old.st_uid || now.st_gid != old.st_gid;
  // Only root may give files away. The file is the writer's own then, as a new one would be.
  if (other_owner && ::fchown(fd, old.st_uid, old.st_gid) != 0 && errno != EPERM) return false;
  return ::fchmod(fd, old.st_mode & 07777) == 0;
}

// old: of the file at path, nullptr when there is none.
void replace_file(const std::string& path, const struct stat* old, Parts parts) {
  // Nobody whom the old file keeps out reads the new one before it has its mode.
  const auto [fd, temporary] = open_temporary(path, old == nullptr ? 0666 : old->st_mode & 0600);
  File file(fd);
  const bool written =
      (old == nullptr || take_over_mode(file.fd(), *old)) && write_parts(file.fd(), parts);
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
  // O_NONBLOCK: a pipe is refused below, and open() does not wait for its writer.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) fail("open", path);
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0) fail("read", path);
  if (!S_ISREG(info.st_mode)) throw Error(cat("can't read ", path, ": not a regular file"));
  std::vector<std::byte> image(info.st_size);
  std::span<std::byte> left(image);
  while (!left.empty()) {
    const ssize_t n = ::read(file.fd(), left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    if (n == 0) break;  // the file has become shorter, and the reader of its format will notice
    left = left.subspan(n);
  }
  image.resize(image.size() - left.size());
  return image;
}

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  struct stat info = {};
  const bool is_there = ::stat(path.c_str(), &info) == 0;
  if (is_there && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    write_in_place(path, parts);
    return;
  }
  // A link stays, and its target changes.
  std::error_code no_such_file;
  const std::string target = std::filesystem::canonical(path, no_such_file).string();
  replace_file(no_such_file ? path : target, is_there && S_ISREG(info.st_mode) ? &info : nullptr,
               parts);
}

}  // namespace trimtab
