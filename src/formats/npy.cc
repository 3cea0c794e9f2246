// SPDX-License-Identifier: Apache-2.0
#include "trimtab/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "formats/npy_header.h"
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

std::vector<std::byte> read_all(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) fail("open", path);
  struct stat info = {};
  if (::fstat(file.fd(), &info) != 0) fail("read", path);
  if (!S_ISREG(info.st_mode)) throw Error(cat("can't read ", path, ": not a regular file"));
  std::vector<std::byte> image(static_cast<size_t>(info.st_size));
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

NpyHeader checked_header(std::span<const std::byte> image, const std::string& file) {
  NpyHeader header = parse_npy_header(image, file);
  const size_t left = image.size() - header.data_offset;
  if (left != header.data_bytes) {
    throw FormatError(file, static_cast<int64_t>(header.data_offset),
                      cat("npy: the shape needs ", header.data_bytes, " bytes of data, the file has ", left));
  }
  return header;
}

// A new file beside path that nobody else writes; its name.
std::pair<int, std::string> open_temporary(const std::string& path) {
  constexpr int kTries = 1000;  // files that killed writers left behind, and writers at the same moment
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

}  // namespace

NpyArray parse_npy(std::span<const std::byte> image, const std::string& file) {
  NpyHeader header = checked_header(image, file);
  const auto data = image.subspan(header.data_offset);
  return {header.dtype, std::move(header.shape), {data.begin(), data.end()}};
}

NpyArray read_npy(const std::string& path) {
  std::vector<std::byte> image = read_all(path);
  NpyHeader header = checked_header(image, path);
  image.erase(image.begin(), image.begin() + static_cast<int64_t>(header.data_offset));
  return {header.dtype, std::move(header.shape), std::move(image)};
}

void write_npy(const std::string& path, DType dtype, std::span<const int64_t> shape, std::span<const std::byte> data) {
  const std::string header = npy_header(dtype, shape);
  size_t want = static_cast<size_t>(bits(dtype)) / 8;
  for (const int64_t n : shape) want *= static_cast<size_t>(n);
  if (data.size() != want) {
    throw InvalidArgument(cat("npy: the shape needs ", want, " bytes of data, got ", data.size()));
  }
  const auto [fd, temporary] = open_temporary(path);
  File file(fd);
  // Synced before the rename: else a crash could leave the new name with no data behind it.
  if (!write_all(fd, header.data(), header.size()) || !write_all(fd, data.data(), data.size()) || ::fsync(fd) != 0 ||
      !file.close() || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    fail("write", path);
  }
}

}  // namespace trimtab
