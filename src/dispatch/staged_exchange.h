// SPDX-License-Identifier: Apache-2.0
// Keeps the order of an exchange for all dispatchers: each step happens once, after the one before
// it, whether the caller polls or waits. It also ends an exchange that is dropped half way.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/shape.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

// Polls, or waits and says true.
inline bool done(Pending& pending, bool block) {
  return block ? (pending.wait(), true) : pending.done();
}
inline bool released(Pending& pending, bool block) {
  return block ? (pending.wait_released(), true) : pending.released();
}
inline bool reached(Exchange& exchange, Stage stage, bool block) {
  return block ? (exchange.wait(stage), true) : exchange.poll(stage);
}

class StagedExchange : public Exchange {
 public:
  // What holds for most exchanges: any pick of any rank may come, and the lane's own group is all
  // that they need.
  using Shape = RankShape;
  static std::vector<std::unique_ptr<Communicator>> make_groups(const RankShape&, Communicator&) {
    return {};
  }
  static void check(const RankShape&, const Lane&) {}
  static size_t later_bytes(const RankShape&) { return 0; }
  static int64_t max_rows(const RankShape& shape) { return shape.max_rows(); }

  // shape and lane must outlive the exchange.
  StagedExchange(const RankShape& shape, const Request& request, Lane& lane)
      : shape_(shape), request_(request), comm_(lane.comm), team_(lane.team), lane_(lane) {
    lane_.has_exchange = true;
  }
  ~StagedExchange() override;
  StagedExchange(const StagedExchange&) = delete;
  StagedExchange& operator=(const StagedExchange&) = delete;

  bool poll(Stage stage) final { return advance(stage, false); }
  void wait(Stage stage) final { advance(stage, true); }
  const Tokens& tokens() const final;
  void send_back(ConstRows y, Left left) final;
  void finish(Rows out) final;
  // The rows of the fullest rank where they are more than the budget, else 0. Known at kArrived, on
  // all ranks alike; the exchange has ended then on all of them, without rows.
  int64_t overflow() const { return over_budget() ? most_rows_ : 0; }

 protected:
  // Have all peers come to the stage? block: wait until they have.
  virtual bool come_to(Stage stage, bool block) = 0;
  // Brings the rows into expert order.
  virtual Tokens arrange() = 0;
  virtual void publish(ConstRows y, Left left) = 0;
  virtual void combine(Rows out) = 0;

  // Says how many rows the fullest rank gets, before come_to(kArrived) is through. Where they are
  // more than the budget come_to() returns when no peer reads this rank's memory any more.
  void set_most_rows(int64_t rows) { most_rows_ = rows; }
  bool over_budget() const { return shape_.bounded() && most_rows_ > shape_.row_budget; }

  // All ranks end the exchange here and no peer reads this rank's memory: there is nothing to abort
  // when it goes.
  void end_on_all_ranks() { state_ = State::kDrained; }

  const RankShape& shape_;
  const Request request_;
  Communicator& comm_;
  Team& team_;

 private:
  enum class State { kDispatched, kArrived, kSentBack, kReturned, kFinished, kDrained };

  bool advance(Stage stage, bool block);
  void require(State state, const char* call) const;

  Lane& lane_;
  State state_ = State::kDispatched;
  int64_t most_rows_ = 0;
  Tokens tokens_;
  ConstRows y_;  // the rows that send_back() was given
};

}  // namespace trimtab
