// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/rank_means.h"

#include <cstdint>
#include <vector>

namespace trimtab::bench {

void take_means_over_ranks(Communicator& comm, std::span<double> values) {
  const size_t ranks = comm.size();
  std::vector<double> all(ranks * values.size());
  std::vector<int64_t> bytes(ranks);
  Pending pending =
      comm.all_gather_v(std::as_bytes(values), std::as_writable_bytes(std::span(all)), bytes);
  pending.wait();
  pending.wait_released();
  for (size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    for (size_t r = 0; r < ranks; ++r) sum += all[r * values.size() + i];
    values[i] = sum / static_cast<double>(ranks);
  }
}

}  // namespace trimtab::bench
