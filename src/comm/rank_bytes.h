// SPDX-License-Identifier: Apache-2.0
// Bytes of ranks that do not know how many the others have; not for the hot path. All are
// collective and blocking, and when a peer fails they wait for those who read this rank's before
// their memory goes.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

// What every rank has, in rank order, on every rank. Throws CommError.
std::vector<std::vector<std::byte>> bytes_of_ranks(Communicator& comm,
                                                   std::span<const std::byte> mine);
// The same on rank 0 alone; the others get nothing, and nothing is sent to them.
std::vector<std::vector<std::byte>> bytes_to_rank_0(Communicator& comm,
                                                    std::span<const std::byte> mine);

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace trimtab
