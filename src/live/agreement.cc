// SPDX-License-Identifier: Apache-2.0
#include "live/agreement.h"

#include "trimtab/error.h"

namespace trimtab {
namespace {

// A status as one number: the job above, then a bit for the deadline, then the JobStatus.
constexpr uint64_t kLateBit = 0x80;
constexpr uint64_t kStatusBits = 0x7f;
constexpr int kJobShift = 8;

bool has_failed(JobStatus status) {
  return status == JobStatus::kFailed || status == JobStatus::kBroken;
}

}  // namespace

uint64_t packed(const RankStatus& status) {
  return status.job << kJobShift | (status.is_late ? kLateBit : 0) |
         static_cast<uint64_t>(status.status);
}

RankStatus unpacked(uint64_t status) {
  return {status >> kJobShift, static_cast<JobStatus>(status & kStatusBits),
          (status & kLateBit) != 0};
}

Agreed agreed(std::span<const uint64_t> statuses, uint64_t job) {
  Agreed result = Agreed::kDone;
  for (const uint64_t status : statuses) {
    const RankStatus rank = unpacked(status);
    if (rank.job != job || rank.status == JobStatus::kRunning) return Agreed::kNotYet;
    if (has_failed(rank.status)) result = Agreed::kFailed;
  }
  return result;
}

StatusExchange::StatusExchange(Communicator& comm)
    : all_(comm.size()), bytes_(all_.size()), comm_(comm.duplicate()) {}

StatusExchange::~StatusExchange() {
  try {
    wait();
  } catch (const Error& error) {
    // The group has failed, and whoever uses it next is told. Peers may still be reading the
    // status; abort() waits for them.
    comm_->abort(error.what());
  }
}

void StatusExchange::wait() {
  if (!is_open_) return;
  pending_.wait();
  pending_.wait_released();
  is_open_ = false;
}

void StatusExchange::begin(uint64_t mine) {
  mine_ = mine;
  pending_ = comm_->all_gather_v(std::as_bytes(std::span(&mine_, 1)),
                                 std::as_writable_bytes(std::span(all_)), bytes_);
  is_open_ = true;
}

std::span<const uint64_t> StatusExchange::end() {
  wait();
  return all_;
}

}  // namespace trimtab
