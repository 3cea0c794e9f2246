// SPDX-License-Identifier: Apache-2.0
// Memory that the processes of one host share: a POSIX shared memory object for each rank, all of
// them mapped in every process at the same address, so that pointers can be handed over as they
// are. A rank allocates from its own object and needs nobody for it. The names are gone from the
// file system as soon as all have mapped them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/shared_memory.h"
#include "trimtab/process_communicator.h"

namespace trimtab {

class HostMemory final : public SharedMemory, public std::enable_shared_from_this<HostMemory> {
 public:
  // Collective over the domain. hosts [ranks]: the host of each rank; those of this rank's host
  // come to share memory.
  static std::shared_ptr<HostMemory> share(int rank, std::span<const int32_t> hosts,
                                           const ProcessExchange& exchange);
  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  Buffer allocate(size_t bytes) override;
  bool shares(const void* p, size_t bytes) const override;
  void close() noexcept override { closed_ = true; }
  bool alive(int rank) const override;
  // A process may be stopped while it reads. After close() the memory stays as it is for it.
  std::chrono::seconds least_patience() const override { return std::chrono::seconds(1); }

 private:
  HostMemory(int rank, std::span<const int32_t> hosts);

  void create();
  void agree_on_address(const ProcessExchange& exchange);
  void map_peers(const ProcessExchange& exchange);
  std::byte* window(size_t index) const { return base_ + index * window_bytes_; }
  void free(size_t offset, size_t bytes) noexcept;

  const int rank_;
  const std::vector<int32_t> hosts_;
  std::vector<int> ranks_;  // the ranks of this host
  size_t self_ = 0;         // where this rank stands in ranks_
  std::string name_;        // the name of the shared object, until it is unlinked
  std::vector<int> files_;  // [ranks_]
  std::byte* base_ = nullptr;
  size_t window_bytes_ = 0;
  std::atomic<bool> closed_{false};

  std::mutex mutex_;                // guards the next two
  std::map<size_t, size_t> holes_;  // offset -> bytes, in this rank's window below end_
  size_t end_ = 0;
};

// [ranks of the domain] what each has brought.
template <class T>
std::vector<T> exchange_values(const ProcessExchange& exchange, const T& mine) {
  const std::vector<std::byte> bytes = exchange(std::as_bytes(std::span(&mine, 1)));
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(all.data()), bytes.data(), bytes.size());
  return all;
}

}  // namespace trimtab
