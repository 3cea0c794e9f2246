// SPDX-License-Identifier: Apache-2.0
#include "comm/stream_outside.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/group.h"

namespace trimtab {
namespace {

using std::chrono::steady_clock;

// One group's ranks on other hosts.
class StreamPeers final : public OutsidePeers {
 public:
  struct Peer {
    int rank = 0;  // of the group
    std::shared_ptr<StreamLink> link;
  };
  StreamPeers(std::vector<Peer> peers, FailureDomain& domain, int64_t group)
      : peers_(std::move(peers)), domain_(domain), group_(group) {}
  ~StreamPeers() override {
    for (const Peer& peer : peers_) peer.link->forget(group_);
  }
  StreamPeers(const StreamPeers&) = delete;
  StreamPeers& operator=(const StreamPeers&) = delete;

  void start(uint64_t, const Operation& operation) override {
    const uint64_t checksum = operation.checksum();
    for (const Peer& peer : peers_) {
      const std::span<const std::byte> block = operation.block_for(peer.rank);
      peer.link->send(group_, {static_cast<int32_t>(operation.kind), checksum, std::ssize(block)},
                      block);
    }
  }
  // start() has copied all.
  Standing sending(uint64_t) override { return {}; }

  Standing standing(uint64_t ticket) override {
    Standing found;
    for (const Peer& peer : peers_) {
      const StreamLink::Progress progress = peer.link->progress(group_);
      if (progress.started >= ticket) continue;
      if (progress.left) return {peer.rank, true};
      if (found.missing < 0) found.missing = peer.rank;
    }
    return found;
  }
  Announcement announcement(int rank, uint64_t ticket) const override {
    return link(rank).announcement(group_, ticket);
  }
  // A peer has started a ticket once its bytes have come.
  void receive(int rank, std::span<std::byte> to) override { link(rank).take(group_, to); }
  Standing receiving() override { return {}; }

  void leave() noexcept override {
    for (const Peer& peer : peers_) peer.link->send_left(group_);
    const auto end = steady_clock::now() + domain_.timeout();
    for (const Peer& peer : peers_) {
      while (!domain_.failed() && steady_clock::now() < end) {
        if (peer.link->flush(steady_clock::now() + std::chrono::milliseconds(10))) break;
      }
    }
  }

 private:
  StreamLink& link(int rank) const { return *std::ranges::find(peers_, rank, &Peer::rank)->link; }

  const std::vector<Peer> peers_;
  FailureDomain& domain_;
  const int64_t group_;
};

}  // namespace

void StreamOutside::connect(const std::shared_ptr<HostStreams>& streams, FailureDomain& domain,
                            int rank) {
  auto made = std::unique_ptr<StreamOutside>(new StreamOutside(streams, domain, rank));
  StreamOutside& outside = *made;
  domain.set_outside(std::move(made));
  outside.open();
}

StreamOutside::StreamOutside(const std::shared_ptr<HostStreams>& streams, FailureDomain& domain,
                             int rank)
    : domain_(domain) {
  for (int r = 0; r < domain.ranks(); ++r) {
    const bool here = domain.host(r) == domain.host(rank);
    links_.push_back(here ? nullptr : std::make_shared<StreamLink>(streams, domain, rank, r));
  }
}

void StreamOutside::open() {
  for (const auto& link : links_)
    if (link != nullptr) link->open();
}

// Peers close their ends at about the same time, unless something has failed.
StreamOutside::~StreamOutside() {
  const auto end = steady_clock::now() + std::chrono::milliseconds(domain_.failed() ? 200 : 1000);
  close(end);
}

void StreamOutside::close(std::chrono::steady_clock::time_point end) noexcept {
  for (const auto& link : links_)
    if (link != nullptr) link->begin_close();
  for (const auto& link : links_)
    if (link != nullptr) link->close(end);
}

std::unique_ptr<OutsidePeers> StreamOutside::peers(std::vector<int> members, int,
                                                   std::vector<bool> here, int64_t number) {
  std::vector<StreamPeers::Peer> peers;
  for (int r = 0; r < std::ssize(here); ++r)
    if (!here[r]) peers.push_back({r, links_[members[r]]});
  return std::make_unique<StreamPeers>(std::move(peers), domain_, number);
}

void StreamOutside::tell_failed(int culprit, int blamed, const char* reason) noexcept {
  for (const auto& link : links_)
    if (link != nullptr) link->send_failed(culprit, blamed, reason);
  // This process may end soon.
  const auto end = steady_clock::now() + std::chrono::milliseconds(200);
  for (const auto& link : links_)
    if (link != nullptr) link->flush(end);
}

}  // namespace trimtab
