// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_bytes.h"

#include <cstdint>
#include <exception>
#include <numeric>

namespace trimtab {
namespace {

std::vector<std::vector<std::byte>> cut(std::span<const std::byte> all,
                                        std::span<const int64_t> sizes) {
  std::vector<std::vector<std::byte>> parts;
  auto part = all.begin();
  for (const int64_t bytes : sizes) {
    parts.emplace_back(part, part + bytes);
    part += bytes;
  }
  return parts;
}

void complete(Pending pending) {
  pending.wait();
  pending.wait_released();
}

// exchange: brings [ranks] sizes, then all the bytes.
template <class Sizes, class Bytes>
std::vector<std::vector<std::byte>> in_two_steps(Communicator& comm, const Sizes& bring_sizes,
                                                 const Bytes& bring_bytes) {
  std::vector<int64_t> sizes(comm.size()), got(sizes.size());
  std::vector<std::byte> all;
  try {
    complete(bring_sizes(std::as_writable_bytes(std::span(sizes)), std::span(got)));
    all.resize(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    complete(bring_bytes(std::span(all), std::span(got)));
  } catch (const std::exception& error) {
    comm.abort(error.what());
    throw;
  }
  return cut(all, sizes);
}

}  // namespace

std::vector<std::vector<std::byte>> bytes_of_ranks(Communicator& comm,
                                                   std::span<const std::byte> mine) {
  const int64_t size = std::ssize(mine);
  return in_two_steps(
      comm,
      [&](std::span<std::byte> sizes, std::span<int64_t> got) {
        return comm.all_gather_v(std::as_bytes(std::span(&size, 1)), sizes, got);
      },
      [&](std::span<std::byte> all, std::span<int64_t> got) {
        return comm.all_gather_v(mine, all, got);
      });
}

std::vector<std::vector<std::byte>> bytes_to_rank_0(Communicator& comm,
                                                    std::span<const std::byte> mine) {
  std::vector<int64_t> send_bytes(comm.size());
  send_bytes[0] = std::ssize(mine);
  const std::vector<int64_t> of_a_size(send_bytes.size(), sizeof(int64_t));
  return in_two_steps(
      comm,
      [&](std::span<std::byte> sizes, std::span<int64_t> got) {
        return comm.all_to_all_v(std::as_bytes(std::span(send_bytes)), of_a_size, sizes, got);
      },
      [&](std::span<std::byte> all, std::span<int64_t> got) {
        return comm.all_to_all_v(mine, send_bytes, all, got);
      });
}

}  // namespace trimtab
