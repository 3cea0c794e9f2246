// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <tuple>
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

// The names of temporary files that are being written. A signal handler can't be handed anything,
// so this list belongs to the process. Files beyond its end are written but not in it.
std::array<std::atomic<const char*>, 64> unfinished_files;

int enlist(const char* name) {
  for (int slot = 0; slot < std::ssize(unfinished_files); ++slot) {
    const char* none = nullptr;
    if (unfinished_files[slot].compare_exchange_strong(none, name)) return slot;
  }
  return -1;
}

void strike_off(int slot) {
  if (slot >= 0) unfinished_files[slot] = nullptr;
}

// No signal is handled while one of these lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Through links, so that they stay.
std::string behind_links(const std::string& path) {
  std::error_code no_such_file;
  const std::string target = std::filesystem::canonical(path, no_such_file).string();
  return no_such_file ? path : target;
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

FileWriter::FileWriter(const std::string& path) : path_(path) {
  struct stat info = {};
  const bool is_there = ::stat(path.c_str(), &info) == 0;
  if (is_there && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail("write", path);
    return;
  }
  const bool replaces = is_there && S_ISREG(info.st_mode);
  target_ = behind_links(path);
  {
    const SignalsBlocked blocked;  // so that no file is there without its name in the list
    // Nobody whom the old file keeps out reads the new one before it has its mode.
    std::tie(fd_, temporary_) = open_temporary(target_, replaces ? info.st_mode & 0600 : 0666);
    slot_ = enlist(temporary_.c_str());
  }
  if (!replaces || take_over_mode(fd_, info)) return;
  const int error = errno;
  discard();
  errno = error;
  fail("write", path);
}

FileWriter::~FileWriter() {
  discard();
}

void FileWriter::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  strike_off(std::exchange(slot_, -1));
  temporary_.clear();
}

void FileWriter::write(std::span<const std::byte> bytes) {
  if (!write_all(fd_, bytes)) fail("write", path_);
}

void FileWriter::commit() {
  const bool replaces = !temporary_.empty();
  // Synced before the rename: else a crash could leave the new name with no data behind it. A
  // delayed write that could not be done shows when the file is closed.
  if ((replaces && ::fsync(fd_) != 0) || ::close(std::exchange(fd_, -1)) != 0 ||
      (replaces && std::rename(temporary_.c_str(), target_.c_str()) != 0)) {
    fail("write", path_);
  }
  strike_off(std::exchange(slot_, -1));
  temporary_.clear();
}

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  FileWriter writer(path);
  for (const auto& part : parts) writer.write(part);
  writer.commit();
}

void remove_unfinished_files() noexcept {
  for (std::atomic<const char*>& name : unfinished_files) {
    if (const char* const file = name) ::unlink(file);
  }
}

}  // namespace trimtab
