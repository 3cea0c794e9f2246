// SPDX-License-Identifier: Apache-2.0
// The ranks agree here on when a migration goes on. Before each step every rank tells the others
// the status of its background job. A job counts as over only when it is over on every rank, so
// whatever follows it (the next job, the switch of a layer) happens on all ranks between the same
// two steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "live/worker.h"
#include "trimtab/communicator.h"

namespace trimtab {

// The status that one rank tells the others before a step. It travels as one number.
struct RankStatus {
  uint64_t job = 0;  // the number of the rank's latest job: 1, 2, ...
  JobStatus status = JobStatus::kIdle;
  bool is_late = false;  // The planner has passed its deadline in seconds (only rank 0 says so).

  bool operator==(const RankStatus&) const = default;
};
uint64_t packed(const RankStatus& status);
RankStatus unpacked(uint64_t status);

enum class Agreed {
  kNotYet,  // some rank has not started the job or is still at it
  kDone,    // every rank has done the job
  kFailed   // the job is over on every rank, and has failed on at least one
};
// Says what all ranks' statuses mean for this job; the answer is the same on every rank. statuses:
// [ranks].
Agreed agreed(std::span<const uint64_t> statuses, uint64_t job);

// Brings every rank's status to every rank, for callers that do not do it themselves: the statuses
// travel under whatever stands between two steps.
class StatusExchange {
 public:
  // Collective: the statuses have a group of their own, duplicated from `comm`.
  explicit StatusExchange(Communicator& comm);
  // Waits for an exchange that has begun, so that peers read this rank's status before it goes.
  ~StatusExchange();
  StatusExchange(const StatusExchange&) = delete;
  StatusExchange& operator=(const StatusExchange&) = delete;

  // Begins an exchange, on every rank after the same step; the one before must have ended.
  void begin(uint64_t mine);
  // Ends the exchange that has begun, if any, and returns all statuses: [ranks]. Before the first
  // exchange they are all 0, which says that no rank has had a job yet. Throws CommError.
  std::span<const uint64_t> end();
  Communicator& comm() { return *comm_; }

 private:
  void wait();

  uint64_t mine_ = 0;
  std::vector<uint64_t> all_;
  std::vector<int64_t> bytes_;
  Pending pending_;
  bool is_open_ = false;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace trimtab
