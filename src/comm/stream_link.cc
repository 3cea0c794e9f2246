// SPDX-License-Identifier: Apache-2.0
#include "comm/stream_link.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr uint64_t kMagic = 0x3162'6174'6d69'7274;  // "trimtab1"
constexpr size_t kMostSpares = 16;

}  // namespace

StreamLink::StreamLink(std::shared_ptr<HostStreams> streams, FailureDomain& domain, int rank,
                       int peer)
    : streams_(std::move(streams)), rank_(rank), peer_(peer), domain_(&domain) {}

void StreamLink::open() {
  threads_running_ = 2;
  std::thread([self = shared_from_this()] { self->run_sender(); }).detach();
  std::thread([self = shared_from_this()] { self->run_receiver(); }).detach();
}

void StreamLink::begin_close() noexcept {
  send(0, {kClosed, 0, 0}, {});
  const std::lock_guard lock(mutex_);
  closing_ = true;
  changed_.notify_all();
}

void StreamLink::close(std::chrono::steady_clock::time_point end) noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, end, [this] { return threads_running_ == 0; });
  lock.unlock();
  const std::lock_guard attached(attached_);
  domain_ = nullptr;
}

void StreamLink::send_left(int64_t group) noexcept {
  send(group, {kLeft, 0, 0}, {});
}

void StreamLink::send_failed(int culprit, int blamed, const char* reason) noexcept {
  Failure failure;
  failure.culprit = culprit;
  failure.blamed = blamed;
  std::strncpy(failure.reason.data(), reason, failure.reason.size() - 1);
  send(0, {kFailed, 0, sizeof failure}, std::as_bytes(std::span(&failure, 1)));
}

void StreamLink::send(int64_t group, const OutsidePeers::Announcement& what,
                      std::span<const std::byte> bytes) {
  Outgoing message;
  message.packet.header = {kMagic, group, what};
  std::byte* to = message.packet.bytes.data();
  if (bytes.size() > message.packet.bytes.size()) {
    message.bytes = spare(bytes.size());
    to = message.bytes.data();
  }
  std::ranges::copy(bytes, to);
  const std::lock_guard lock(mutex_);
  if (broken_) return;
  outgoing_.push_back(std::move(message));
  changed_.notify_all();
}

bool StreamLink::flush(std::chrono::steady_clock::time_point end) noexcept {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, end,
                             [this] { return broken_ || (outgoing_.empty() && !sending_); });
}

void StreamLink::run_sender() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return broken_ || closing_ || !outgoing_.empty(); });
    if (broken_ || outgoing_.empty()) break;
    Outgoing message = std::move(outgoing_.front());
    outgoing_.pop_front();
    sending_ = true;
    lock.unlock();
    try {
      streams_->send(peer_, std::as_bytes(std::span(&message.packet, 1)));
      const auto bytes = static_cast<size_t>(message.packet.header.what.bytes);
      if (message.bytes.bytes() > 0) streams_->send(peer_, {message.bytes.data(), bytes});
      give_back(std::move(message.bytes));
    } catch (const std::exception& error) {
      lose(error.what());
    } catch (...) {
      lose("an exception of unknown type");
    }
    lock.lock();
    sending_ = false;
    changed_.notify_all();
  }
  --threads_running_;
  changed_.notify_all();
}

void StreamLink::run_receiver() noexcept {
  try {
    while (receive_message()) {
    }
  } catch (const std::exception& error) {
    lose(error.what());
  } catch (...) {
    lose("an exception of unknown type");
  }
  const std::lock_guard lock(mutex_);
  --threads_running_;
  changed_.notify_all();
}

// False: the peer has closed the link.
bool StreamLink::receive_message() {
  Packet packet;
  streams_->receive(peer_, std::as_writable_bytes(std::span(&packet, 1)));
  const Header& header = packet.header;
  if (header.magic != kMagic || header.what.bytes < 0)
    throw Error("what came is no message of this version of Trimtab");
  if (header.what.kind == kClosed) {
    const std::lock_guard lock(mutex_);
    peer_closed_ = true;
    return false;
  }
  if (header.what.kind == kFailed) {
    Failure failure;
    std::memcpy(&failure, packet.bytes.data(), sizeof failure);
    fail(failure);
    return true;
  }
  const auto bytes = static_cast<size_t>(header.what.bytes);
  Buffer buffer;
  if (bytes > 0) buffer = spare(bytes);
  if (bytes > packet.bytes.size()) {
    streams_->receive(peer_, {buffer.data(), bytes});
  } else {
    std::copy_n(packet.bytes.data(), bytes, buffer.data());
  }
  deliver(header, std::move(buffer));
  return true;
}

void StreamLink::deliver(const Header& header, Buffer bytes) {
  {
    const std::lock_guard lock(mutex_);
    Inbox& inbox = inboxes_[header.group];
    if (header.what.kind == kLeft) {
      inbox.progress.left = true;
      if (inbox.forgotten) inboxes_.erase(header.group);
    } else if (!inbox.forgotten) {
      inbox.headers[(inbox.progress.started + 1) % kHeaders] = header.what;
      if (header.what.kind != static_cast<int32_t>(Operation::Kind::kBarrier))
        inbox.bytes.push_back(std::move(bytes));
      ++inbox.progress.started;
    }
  }
  const std::lock_guard attached(attached_);
  if (domain_ != nullptr) domain_->wake(rank_);
}

void StreamLink::fail(const Failure& failure) noexcept {
  const std::lock_guard attached(attached_);
  if (domain_ != nullptr)
    domain_->fail(failure.culprit, failure.blamed, failure.reason.data(), false);
}

void StreamLink::lose(const char* why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    outgoing_.clear();
    changed_.notify_all();
    if (closing_ || peer_closed_) return;
  }
  const std::lock_guard attached(attached_);
  if (domain_ == nullptr || domain_->failed()) return;
  domain_->fail(rank_, peer_, cat("the connection to it has ended (", why, ")").c_str());
}

StreamLink::Progress StreamLink::progress(int64_t group) {
  const std::lock_guard lock(mutex_);
  return inboxes_[group].progress;
}

OutsidePeers::Announcement StreamLink::announcement(int64_t group, uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  return inboxes_[group].headers[ticket % kHeaders];
}

void StreamLink::take(int64_t group, std::span<std::byte> to) {
  std::unique_lock lock(mutex_);
  std::deque<Buffer>& bytes = inboxes_[group].bytes;
  if (bytes.empty()) throw Error("bytes of a collective were taken before they had come");
  Buffer taken = std::move(bytes.front());
  bytes.pop_front();
  lock.unlock();
  std::copy_n(taken.data(), to.size(), to.data());
  give_back(std::move(taken));
}

void StreamLink::forget(int64_t group) noexcept {
  const std::lock_guard lock(mutex_);
  Inbox& inbox = inboxes_[group];
  if (inbox.progress.left || broken_) {
    inboxes_.erase(group);
  } else {
    inbox.bytes.clear();
    inbox.forgotten = true;
  }
}

Buffer StreamLink::spare(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [bytes](const Buffer& spare) {
      return spare.bytes() >= bytes && spare.bytes() / 8 <= bytes;
    };
    if (const auto found = std::ranges::find_if(spares_, fits); found != spares_.end()) {
      Buffer buffer = std::move(*found);
      spares_.erase(found);
      return buffer;
    }
  }
  return Buffer(bytes + bytes / 2);
}

void StreamLink::give_back(Buffer buffer) {
  if (buffer.bytes() == 0) return;
  const std::lock_guard lock(mutex_);
  if (spares_.size() == kMostSpares) spares_.erase(spares_.begin());
  spares_.push_back(std::move(buffer));
}

}  // namespace trimtab
