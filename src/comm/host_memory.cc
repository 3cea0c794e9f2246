// SPDX-License-Identifier: Apache-2.0
#include "comm/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <random>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAllWindows = size_t{16} << 40;  // of address space, which has 128 TiB

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// A window can hold the machine's memory. Only what is allocated in it becomes real.
size_t bytes_of_window(size_t ranks) {
  const auto memory = cells(::sysconf(_SC_PHYS_PAGES), ::sysconf(_SC_PAGESIZE));
  return std::bit_floor(std::min(std::bit_ceil(memory), kAllWindows / ranks));
}

std::string error_text() {
  return std::strerror(errno);
}

// The owner of an object holds a lock on it for life: the kernel takes it away when the process
// ends, however it does.
struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat folder = {};
  if (::stat("/dev/shm", &folder) != 0) throw Error(cat("/dev/shm: ", error_text()));
  return cat(boot, ":", folder.st_dev);
}

HostMemory::HostMemory(int rank, std::span<const int32_t> hosts)
    : rank_(rank), hosts_(hosts.begin(), hosts.end()) {
  const int32_t here = hosts_[rank];
  for (int r = 0; r < std::ssize(hosts_); ++r) {
    if (r == rank) self_ = ranks_.size();
    if (hosts_[r] == here) ranks_.push_back(r);
  }
  files_.assign(ranks_.size(), -1);
  window_bytes_ = bytes_of_window(ranks_.size());
}

std::shared_ptr<HostMemory> HostMemory::share(int rank, std::span<const int32_t> hosts,
                                              const ProcessExchange& exchange) {
  const std::shared_ptr<HostMemory> memory(new HostMemory(rank, hosts));
  memory->create();
  memory->agree_on_address(exchange);
  memory->map_peers(exchange);
  return memory;
}

HostMemory::~HostMemory() {
  if (!name_.empty()) ::shm_unlink(name_.c_str());
  if (base_ != nullptr) ::munmap(base_, ranks_.size() * window_bytes_);
  for (const int file : files_) {
    if (file >= 0) ::close(file);
  }
}

void HostMemory::create() {
  std::random_device random;
  int file = -1;
  while (file < 0) {
    name_ = cat("/trimtab-", ::getpid(), "-", random());
    file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 && errno != EEXIST) throw Error(cat("shared memory ", name_, ": ", error_text()));
  }
  files_[self_] = file;
  if (::ftruncate(file, static_cast<off_t>(window_bytes_)) != 0) {
    throw Error(cat("shared memory ", name_, ": ", error_text()));
  }
  struct flock lock = whole_file(F_WRLCK);
  if (::fcntl(file, F_OFD_SETLK, &lock) != 0)
    throw Error(cat("shared memory ", name_, ": ", error_text()));
}

// The first rank of a host proposes an address that is free in its own process; with address space
// layout randomisation it is free in the others too, almost always.
void HostMemory::agree_on_address(const ProcessExchange& exchange) {
  const size_t bytes = ranks_.size() * window_bytes_;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  std::vector<std::byte*> refused;  // kept, so that the next proposal is another one
  const auto reserve = [bytes](std::byte* at, int more) {
    void* p = ::mmap(at, bytes, PROT_NONE, kFlags | more, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  };
  bool all_agreed = false;
  for (int attempt = 0; attempt < 16 && !all_agreed; ++attempt) {
    if (self_ == 0 && base_ == nullptr) base_ = reserve(nullptr, 0);
    std::byte* const proposed = exchange_values(exchange, base_)[ranks_[0]];
    if (self_ != 0 && base_ == nullptr && proposed != nullptr) {
      base_ = reserve(proposed, MAP_FIXED_NOREPLACE);
      if (base_ != nullptr && base_ != proposed) {  // a kernel that does not know the flag
        ::munmap(base_, bytes);
        base_ = nullptr;
      }
    }
    const std::vector<std::byte*> bases = exchange_values(exchange, base_);  // null: not agreed
    all_agreed = true;
    bool agreed_here = true;
    for (size_t r = 0; r < hosts_.size(); ++r) {
      const bool agreed = bases[r] != nullptr;
      all_agreed = all_agreed && agreed;
      if (hosts_[r] == hosts_[rank_]) agreed_here = agreed_here && agreed;
    }
    if (!agreed_here && base_ != nullptr) {
      if (self_ == 0) {
        refused.push_back(base_);
      } else {
        ::munmap(base_, bytes);
      }
      base_ = nullptr;
    }
  }
  for (std::byte* p : refused) ::munmap(p, bytes);
  if (!all_agreed)
    throw Error(cat("no address is free for ", bytes, " bytes in the processes of a host"));
}

void HostMemory::map_peers(const ProcessExchange& exchange) {
  struct Name {
    char text[64];
  };
  Name mine = {};
  std::strncpy(mine.text, name_.c_str(), sizeof mine.text - 1);
  const std::vector<Name> names = exchange_values(exchange, mine);
  std::string problem;
  for (size_t i = 0; i < ranks_.size() && problem.empty(); ++i) {
    const Name& name = names[ranks_[i]];
    if (i != self_) files_[i] = ::shm_open(name.text, O_RDWR, 0);
    void* p = files_[i] < 0 ? MAP_FAILED
                            : ::mmap(window(i), window_bytes_, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_FIXED | MAP_NORESERVE, files_[i], 0);
    if (p == MAP_FAILED)
      problem = cat("shared memory ", name.text, " of rank ", ranks_[i], ": ", error_text());
    ::madvise(window(i), window_bytes_, MADV_HUGEPAGE);  // a hint
    if (i != self_) ::madvise(window(i), window_bytes_, MADV_DONTDUMP);
  }
  exchange_values(exchange, mine);  // all have mapped all
  ::shm_unlink(name_.c_str());
  name_.clear();
  if (!problem.empty()) throw Error(problem);
}

Buffer HostMemory::allocate(size_t bytes) {
  if (bytes == 0) return {};
  if (bytes > window_bytes_)
    throw Error(cat("shared memory: ", bytes, " bytes asked for, at most ", window_bytes_));
  const size_t size = round_up(bytes, kPage);
  size_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto hole =
        std::ranges::find_if(holes_, [size](const auto& h) { return h.second >= size; });
    if (hole != holes_.end()) {
      offset = hole->first;
      const size_t rest = hole->second - size;
      holes_.erase(hole);
      if (rest > 0) holes_[offset + size] = rest;
    } else {
      if (size > window_bytes_ - end_)
        throw Error(cat("shared memory: no ", bytes, " bytes are left"));
      offset = end_;
      end_ += size;
    }
  }
  // Without this a full /dev/shm would be a SIGBUS at the first touch.
  const int error =
      ::posix_fallocate(files_[self_], static_cast<off_t>(offset), static_cast<off_t>(size));
  if (error != 0) {
    free(offset, size);
    throw Error(
        cat("shared memory (/dev/shm): no room for ", bytes, " bytes: ", std::strerror(error)));
  }
  std::byte* p = window(self_) + offset;
  return {p, bytes, std::shared_ptr<void>(p, [self = shared_from_this(), offset, size](void*) {
            self->free(offset, size);
          })};
}

void HostMemory::free(size_t offset, size_t bytes) noexcept {
  if (closed_) return;
  // Gives the pages back and makes them zero again.
  ::fallocate(files_[self_], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
  const std::lock_guard lock(mutex_);
  std::map<size_t, size_t>::iterator hole;
  try {
    hole = holes_.emplace(offset, bytes).first;
  } catch (const std::bad_alloc&) {  // then this range is not used again
    return;
  }
  if (const auto next = std::next(hole);
      next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      holes_.erase(hole);
      hole = before;
    }
  }
  if (hole->first + hole->second == end_) {
    end_ = hole->first;
    holes_.erase(hole);
  }
}

bool HostMemory::shares(const void* p, size_t bytes) const {
  if (bytes == 0) return true;
  const auto first = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(base_);
  return first >= base && first + bytes <= base + ranks_.size() * window_bytes_;
}

bool HostMemory::alive(int rank) const {
  const auto found = std::ranges::find(ranks_, rank);
  if (found == ranks_.end()) return true;  // on another host: not known here
  const int64_t index = found - ranks_.begin();
  if (std::cmp_equal(index, self_)) return true;
  struct flock lock = whole_file(F_WRLCK);
  return ::fcntl(files_[index], F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace trimtab
