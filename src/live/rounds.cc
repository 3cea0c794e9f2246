// SPDX-License-Identifier: Apache-2.0
#include "live/rounds.h"

#include <algorithm>

#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr int32_t kFree = -1;

// Which route a rank has in each round, as a sender and as a receiver.
class Timetable {
 public:
  Timetable(std::span<const Route> routes, int num_ranks)
      : routes_(routes), rounds_(busiest(routes, num_ranks)), round_of_(routes.size(), kFree) {
    for (auto& side : route_at_) side.assign(cells(num_ranks, rounds_), kFree);
  }

  void add(int32_t route) {
    const auto [from, to] = routes_[route];
    const int32_t a = free_round(kSender, from), b = free_round(kReceiver, to);
    if (a != b) swap_along_path(to, a, b);
    put(route, a);
  }
  std::vector<int32_t> take() && { return std::move(round_of_); }

 private:
  enum Side : size_t { kSender, kReceiver };

  static int32_t busiest(std::span<const Route> routes, int num_ranks) {
    std::vector<int32_t> sent(num_ranks), received(sent.size());
    int32_t most = 0;
    for (const Route& r : routes) {
      most = std::max({most, ++sent[r.from], ++received[r.to]});
    }
    return most;
  }

  int32_t& at(Side side, int32_t rank, int32_t round) {
    return route_at_[side][cells(rank, rounds_) + static_cast<size_t>(round)];
  }
  int32_t free_round(Side side, int32_t rank) {
    int32_t round = 0;
    while (at(side, rank, round) != kFree) ++round;
    return round;
  }
  void put(int32_t route, int32_t round) {
    const auto [from, to] = routes_[route];
    at(kSender, from, round) = at(kReceiver, to, round) = route;
    round_of_[route] = round;
  }

  // Makes round a free for the receiver, which has b free. Its route in a goes to b; the sender of
  // that may have one in b, which then goes to a, and so on. The path never comes to the sender
  // that has a free: it enters senders by a.
  void swap_along_path(int32_t receiver, int32_t a, int32_t b) {
    std::vector<int32_t> path;
    Side side = kReceiver;
    int32_t rank = receiver;
    for (int32_t round = a;; round = round == a ? b : a) {
      const int32_t route = at(side, rank, round);
      if (route == kFree) break;
      path.push_back(route);
      const Route& r = routes_[route];
      rank = side == kReceiver ? r.from : r.to;
      side = side == kReceiver ? kSender : kReceiver;
    }
    for (const int32_t route : path) {
      const auto [from, to] = routes_[route];
      const int32_t old = round_of_[route];
      at(kSender, from, old) = at(kReceiver, to, old) = kFree;
    }
    for (const int32_t route : path) put(route, round_of_[route] == a ? b : a);
  }

  std::span<const Route> routes_;
  const int32_t rounds_;
  std::vector<int32_t> round_of_;
  std::vector<int32_t> route_at_[2];  // [ranks, rounds]
};

}  // namespace

std::vector<int32_t> rounds(std::span<const Route> routes, int num_ranks) {
  Timetable timetable(routes, num_ranks);
  for (size_t r = 0; r < routes.size(); ++r) timetable.add(static_cast<int32_t>(r));
  return std::move(timetable).take();
}

}  // namespace trimtab
