// SPDX-License-Identifier: Apache-2.0
#include "comm/fault_injection.h"

#include <cstring>
#include <thread>

namespace trimtab {

bool FaultyCommunicator::strike() {
  const int64_t operation = operations_++;
  if (!fault_ || operation != fault_->operation) return false;
  switch (fault_->kind) {
    case Fault::Kind::kDelay:
    case Fault::Kind::kDrop:  // peers that have given up fail the group, so the operation then
                              // throws
      std::this_thread::sleep_for(fault_->time);
      return false;
    case Fault::Kind::kCorrupt:
      return true;
    case Fault::Kind::kKill:
      throw Killed();
  }
  return false;
}

std::span<const std::byte> FaultyCommunicator::struck(std::span<const std::byte> send) {
  if (!strike() || send.empty()) return send;
  corrupted_.resize((send.size() + sizeof(float) - 1) / sizeof(float));
  std::memcpy(corrupted_.data(), send.data(), send.size());
  const auto copy = std::as_writable_bytes(std::span(corrupted_)).first(send.size());
  copy[send.size() / 2] ^= std::byte{0x40};
  return copy;
}

Pending FaultyCommunicator::keep(Pending pending) {
  pending_[++started_ % pending_.size()] = pending;
  return {this, started_};
}

void FaultyCommunicator::barrier() {
  strike();
  comm_.barrier();
}

Pending FaultyCommunicator::all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                                         std::span<int64_t> bytes_of_rank) {
  return keep(comm_.all_gather_v(struck(send), recv, bytes_of_rank));
}

Pending FaultyCommunicator::reduce_scatter_v(std::span<const float> send,
                                             std::span<const int64_t> counts,
                                             std::span<float> recv) {
  const auto bytes = struck(std::as_bytes(send));
  const std::span<const float> floats(reinterpret_cast<const float*>(bytes.data()), send.size());
  return keep(comm_.reduce_scatter_v(floats, counts, recv));
}

Pending FaultyCommunicator::all_to_all_v(std::span<const std::byte> send,
                                         std::span<const int64_t> send_bytes,
                                         std::span<std::byte> recv, std::span<int64_t> recv_bytes) {
  return keep(comm_.all_to_all_v(struck(send), send_bytes, recv, recv_bytes));
}

bool FaultyCommunicator::done(uint64_t ticket, bool block) {
  if (!block) return pending(ticket).done();
  pending(ticket).wait();
  return true;
}

bool FaultyCommunicator::released(uint64_t ticket, bool block) {
  if (!block) return pending(ticket).released();
  pending(ticket).wait_released();
  return true;
}

uint64_t FaultyCommunicator::FaultyBoard::post(const void* item) {
  comm_.strike();
  return inner().post(item);
}

}  // namespace trimtab
