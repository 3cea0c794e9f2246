// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_trace.h"

#include <algorithm>
#include <utility>

#include "comm/rank_bytes.h"

namespace trimtab::cli {

namespace {

// All ranks together, so that the file stays at a size that Perfetto opens: about 120 bytes an
// event.
constexpr int64_t kMostEvents = int64_t{1} << 20;
constexpr int64_t kMostEventsOfAThread = int64_t{1} << 17;

int64_t events_of(int64_t steps, int layers) {
  return steps * (8 + 16 * int64_t{layers});  // a MoE layer has at most 13
}

}  // namespace

RunTrace::RunTrace(std::string file, const Ranks& ranks, int64_t steps, int layers)
    : file_(std::move(file)),
      are_processes_(ranks.are_processes()),
      capacity_(std::min({kMostEvents / ranks.count(), kMostEventsOfAThread,
                          events_of(std::max<int64_t>(steps, 1), layers)})),
      ranks_(ranks.count()),
      events_(ranks.count()) {}

void RunTrace::begin(Communicator& comm) {
  if (file_.empty()) return;
  const int64_t now = TraceBuffer::now();
  int64_t first = now;
  for (const auto& one : bytes_of_ranks(comm, std::as_bytes(std::span(&now, 1)))) {
    first = std::min(first, values_of<int64_t>(one)[0]);
  }
  const bool one_host = *std::ranges::max_element(comm.hosts()) == 0;
  ranks_[comm.rank()].origin = one_host ? first : TraceBuffer::now();
}

TraceBuffer* RunTrace::add_thread(const Communicator& comm, const std::string& name) {
  if (file_.empty()) return nullptr;
  OfRank& rank = ranks_[comm.rank()];
  TraceBuffer* buffer = &rank.buffers.emplace_back(capacity_);
  rank.tracks.push_back({comm.rank(), static_cast<int>(rank.tracks.size()), name, buffer});
  return buffer;
}

void RunTrace::finish(Communicator& comm) {
  if (file_.empty()) return;
  const OfRank& rank = ranks_[comm.rank()];
  std::string mine = chrome_trace_events(rank.tracks, rank.origin);
  if (!are_processes_) {
    events_[comm.rank()] = std::move(mine);
    return;
  }
  const auto all = bytes_of_ranks(comm, std::as_bytes(std::span(mine)));
  std::ranges::transform(all, events_.begin(), [](const auto& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
}

void RunTrace::write() const {
  if (file_.empty()) return;
  write_chrome_trace(file_, events_);
}

}  // namespace trimtab::cli
