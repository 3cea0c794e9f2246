// SPDX-License-Identifier: Apache-2.0
// What every rank has, on every rank; for results, not for the hot path.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab::cli {

// Bytes of every rank, in rank order. Collective.
std::vector<std::vector<std::byte>> gather(Communicator& comm, std::span<const std::byte> mine);

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace trimtab::cli
