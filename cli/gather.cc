// SPDX-License-Identifier: Apache-2.0
#include "cli/gather.h"

#include <cstdint>
#include <numeric>

namespace trimtab::cli {

std::vector<std::vector<std::byte>> gather(Communicator& comm, std::span<const std::byte> mine) {
  std::vector<int64_t> sizes(static_cast<size_t>(comm.size()));
  const auto size = static_cast<int64_t>(mine.size());
  std::vector<int64_t> ignored(sizes.size());
  comm.all_gather_v(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)), ignored)
      .wait_released();
  std::vector<std::byte> all(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
  comm.all_gather_v(mine, all, ignored).wait_released();
  std::vector<std::vector<std::byte>> parts;
  auto part = all.begin();
  for (const int64_t bytes : sizes) {
    parts.emplace_back(part, part + bytes);
    part += bytes;
  }
  return parts;
}

}  // namespace trimtab::cli
