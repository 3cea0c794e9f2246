// SPDX-License-Identifier: Apache-2.0
#include "comm/fault_injection.h"

#include <cstring>
#include <thread>

#include "trimtab/error.h"

namespace trimtab {

bool FaultyCommunicator::strike() {
  const int64_t operation = operations_++;
  if (!fault_ || operation != fault_->operation) return false;
  switch (fault_->kind) {
    case Fault::Kind::kDelay:
      std::this_thread::sleep_for(fault_->time);
      return false;
    case Fault::Kind::kDrop:
      wait_until_failed();
    case Fault::Kind::kCorrupt:
      return true;
    case Fault::Kind::kKill:
      throw Killed();
  }
  return false;
}

// Asking after a collective that the others never join is no wait, so it has no timeout.
void FaultyCommunicator::wait_until_failed() {
  constexpr auto kLongest = std::chrono::minutes(1);
  if (aside_ == nullptr) throw InvalidArgument("a fault that drops needs a group aside");
  std::vector<int64_t> bytes(aside_->size());
  Pending never = aside_->all_gather_v({}, {}, bytes);
  for (const auto end = std::chrono::steady_clock::now() + kLongest;
       std::chrono::steady_clock::now() < end;) {
    never.done();  // throws once the group has failed
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw Error("an operation was dropped, and nobody missed it");
}

std::span<const std::byte> FaultyCommunicator::struck(std::span<const std::byte> send) {
  if (!strike() || send.empty()) return send;
  corrupted_.resize((send.size() + sizeof(float) - 1) / sizeof(float));
  std::memcpy(corrupted_.data(), send.data(), send.size());
  const auto copy = std::as_writable_bytes(std::span(corrupted_)).first(send.size());
  const auto bits = static_cast<int64_t>(8 * send.size());
  const int64_t bit = fault_->bit < 0 ? bits / 16 * 8 + 6 : fault_->bit % bits;
  copy[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
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
