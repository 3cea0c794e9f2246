// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_peers.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "comm/mpi/mpi_calls.h"
#include "comm/mpi/mpi_network.h"

namespace trimtab {
namespace {

constexpr size_t kLongestMessage = size_t{1} << 30;  // MPI-3 counts are int
// How long a rank that leaves waits until MPI has taken its receives back.
constexpr std::chrono::seconds kLongestCancel(1);

template <class T>
int int_size() {
  return static_cast<int>(sizeof(T));
}

}  // namespace

MpiPeers::MpiPeers(MpiNetwork& network, std::vector<int> members, int rank,
                   const std::vector<bool>& here, int first_tag)
    : network_(network), members_(std::move(members)), rank_(rank), header_tag_(first_tag) {
  for (int r = 0; r < std::ssize(here); ++r) {
    if (!here[r]) peers_.emplace_back().rank = r;
  }
  header_requests_.assign(peers_.size(), MPI_REQUEST_NULL);
  arrived_headers_.resize(peers_.size());
  const std::lock_guard lock(mpi::calls());
  for (int64_t p = 0; p < std::ssize(peers_); ++p) post_header_receive(p);
}

// Takes back what has been posted. What MPI still needs after that is never freed.
MpiPeers::~MpiPeers() {
  {
    const std::lock_guard lock(mpi::calls());
    int finalized = 0;
    if (MPI_Finalized(&finalized); finalized != 0) return;
    for (std::vector<MPI_Request>* requests : {&header_requests_, &receives_.requests}) {
      for (MPI_Request& request : *requests) {
        if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
      }
    }
  }
  const auto end = std::chrono::steady_clock::now() + kLongestCancel;
  while (!receives_have_ended() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  bool all_ended = receives_have_ended();
  for (Transfers& sends : sends_) all_ended = has_ended(sends.requests) && all_ended;
  if (all_ended) return;
  struct Kept {
    std::vector<Peer> peers;
    std::vector<Landing> landings;
    std::array<Transfers, GroupState::kRing> sends;
    std::shared_ptr<SharedMemory> memory;
  };
  network_.domain().memory().close();
  new Kept{std::move(peers_), std::move(landings_), std::move(sends_),
           network_.domain().shared_memory()};
}

bool MpiPeers::has_ended(std::vector<MPI_Request>& requests) {
  const std::lock_guard lock(mpi::calls());
  int ended = 0;
  return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &ended,
                     MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
         ended != 0;
}

bool MpiPeers::receives_have_ended() {
  return has_ended(header_requests_) && has_ended(receives_.requests);
}

const MpiPeers::Peer& MpiPeers::peer(int rank) const {
  return *std::ranges::find(peers_, rank, &Peer::rank);
}

void MpiPeers::post_header_receive(int64_t p) {
  const int from = member(peers_[p].rank);
  const int code = MPI_Irecv(&peers_[p].incoming, int_size<Announcement>(), MPI_BYTE, from,
                             header_tag_, network_.comm(), &header_requests_[p]);
  if (code != MPI_SUCCESS) network_.fail(from, "MPI_Irecv", code);
}

// Takes in the headers that have come.
void MpiPeers::take_headers() {
  if (network_.domain().failed()) return;
  int count = 0;
  do {
    const int code =
        MPI_Testsome(static_cast<int>(header_requests_.size()), header_requests_.data(), &count,
                     arrived_headers_.data(), MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) return network_.fail(member(rank_), "MPI_Testsome", code);
    for (int i = 0; i < count; ++i) {  // count is MPI_UNDEFINED, below 0, once all have left
      const int p = arrived_headers_[i];
      Peer& peer = peers_[p];
      if (peer.incoming.kind == kLeft) {
        peer.left = true;
        continue;
      }
      peer.headers[++peer.started % kHeaders] = peer.incoming;
      post_header_receive(p);
    }
  } while (count > 0);
}

template <class Byte, class Begin>
void MpiPeers::in_messages(int rank, std::span<Byte> bytes, Transfers& transfers,
                           const Begin& begin) {
  while (!bytes.empty()) {
    const std::span<Byte> message = bytes.first(std::min(bytes.size(), kLongestMessage));
    bytes = bytes.subspan(message.size());
    transfers.ranks.push_back(rank);
    const int code = begin(message.data(), static_cast<int>(message.size()),
                           &transfers.requests.emplace_back(MPI_REQUEST_NULL));
    if (code != MPI_SUCCESS) return network_.fail(member(rank), "MPI_Isend or MPI_Irecv", code);
  }
}

void MpiPeers::start(uint64_t ticket, const Operation& operation) {
  const std::lock_guard lock(mpi::calls());
  if (network_.domain().failed()) return;  // what was sent before may still be on its way
  Transfers& sends = sends_[ticket % sends_.size()];
  sends.requests.clear();
  sends.ranks.clear();
  sends.headers.resize(peers_.size());
  const uint64_t checksum = operation.checksum();
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int to = peers_[p].rank;
    const std::span<const std::byte> block = operation.block_for(to);
    sends.headers[p] = {static_cast<int32_t>(operation.kind), checksum, std::ssize(block)};
    sends.ranks.push_back(to);
    const int code =
        MPI_Isend(&sends.headers[p], int_size<Announcement>(), MPI_BYTE, member(to), header_tag_,
                  network_.comm(), &sends.requests.emplace_back(MPI_REQUEST_NULL));
    if (code != MPI_SUCCESS) return network_.fail(member(to), "MPI_Isend", code);
    in_messages(to, block, sends, [&](const std::byte* data, int bytes, MPI_Request* request) {
      return MPI_Isend(data, bytes, MPI_BYTE, member(to), header_tag_ + 1, network_.comm(),
                       request);
    });
  }
}

Standing MpiPeers::first_unfinished(Transfers& transfers) {
  const std::lock_guard lock(mpi::calls());
  if (network_.domain().failed()) return {rank_, false};
  int finished = 0;
  const int code = MPI_Testall(static_cast<int>(transfers.requests.size()),
                               transfers.requests.data(), &finished, MPI_STATUSES_IGNORE);
  if (code != MPI_SUCCESS) network_.fail(member(rank_), "MPI_Testall", code);
  if (finished != 0) {
    transfers.requests.clear();
    transfers.ranks.clear();
    return {};
  }
  // Testall frees none before all are through; ask each one where it stands.
  for (size_t i = 0; i < transfers.requests.size(); ++i) {
    int done = 0;
    MPI_Request_get_status(transfers.requests[i], &done, MPI_STATUS_IGNORE);
    if (done == 0) return {transfers.ranks[i], false};
  }
  return {transfers.ranks.front(), false};
}

Standing MpiPeers::sending(uint64_t ticket) {
  return first_unfinished(sends_[ticket % sends_.size()]);
}

Standing MpiPeers::standing(uint64_t ticket) {
  const std::lock_guard lock(mpi::calls());
  take_headers();
  Standing found;
  for (const Peer& peer : peers_) {
    if (peer.started >= ticket) continue;
    if (peer.left) return {peer.rank, true};
    if (found.missing < 0) found.missing = peer.rank;
  }
  return found;
}

OutsidePeers::Announcement MpiPeers::announcement(int rank, uint64_t ticket) const {
  return peer(rank).headers[ticket % kHeaders];
}

void MpiPeers::receive(int rank, std::span<std::byte> to) {
  const std::lock_guard lock(mpi::calls());
  if (network_.domain().failed()) return;
  in_messages(rank, landing(to), receives_, [&](std::byte* data, int bytes, MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, member(rank), header_tag_ + 1, network_.comm(),
                     request);
  });
}

// Where to receive what goes to `to`.
std::span<std::byte> MpiPeers::landing(std::span<std::byte> to) {
  if (network_.domain().memory().shares(to.data(), to.size())) return to;
  if (num_landings_ == std::ssize(landings_)) landings_.emplace_back();
  Landing& landing = landings_[num_landings_++];
  if (landing.bytes.bytes() < to.size()) landing.bytes = Buffer(to.size() + to.size() / 2);
  landing.to = to;
  return {landing.bytes.data(), to.size()};
}

Standing MpiPeers::receiving() {
  const Standing found = first_unfinished(receives_);
  if (found.missing < 0) deliver();
  return found;
}

void MpiPeers::deliver() {
  for (int64_t i = 0; i < num_landings_; ++i) {
    const Landing& landing = landings_[i];
    std::copy_n(landing.bytes.data(), landing.to.size(), landing.to.data());
  }
  num_landings_ = 0;
}

void MpiPeers::leave() noexcept {
  const Announcement farewell{kLeft, 0, 0};
  for (const Peer& peer : peers_) {
    network_.send_away(std::as_bytes(std::span(&farewell, 1)), member(peer.rank), header_tag_);
  }
  // Peers may still have to get what this rank has sent last.
  const auto end = std::chrono::steady_clock::now() + network_.domain().timeout();
  for (Transfers& sends : sends_) {
    while (first_unfinished(sends).missing >= 0 && !network_.domain().failed() &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

}  // namespace trimtab
