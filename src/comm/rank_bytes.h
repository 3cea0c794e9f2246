// SPDX-License-Identifier: Apache-2.0
// Brings bytes of all ranks together when ranks do not know how many bytes the others have; not for
// the hot path. All functions are collective and block. When a peer fails they wait for the ranks
// that read this rank's bytes before they throw.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

// Returns every rank's bytes, in rank order, on every rank. Throws CommError.
std::vector<std::vector<std::byte>> bytes_of_ranks(Communicator& comm,
                                                   std::span<const std::byte> mine);
// The same for rank 0 alone: the other ranks get empty ones, and nothing is sent to them.
std::vector<std::vector<std::byte>> bytes_to_rank_0(Communicator& comm,
                                                    std::span<const std::byte> mine);

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace trimtab
