// SPDX-License-Identifier: Apache-2.0
// The order of an exchange, common to all dispatchers: each step once, after the one before it, whether the caller
// polls or waits; and the end of one that is dropped half way.
#pragma once

#include "dispatch/shape.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

class StagedExchange : public Exchange {
 public:
  // shape must outlive the exchange.
  StagedExchange(const RankShape& shape, const Request& request, Lane& lane)
      : shape_(shape), request_(request), comm_(lane.comm), team_(lane.team) {}
  ~StagedExchange() override;
  StagedExchange(const StagedExchange&) = delete;
  StagedExchange& operator=(const StagedExchange&) = delete;

  bool poll(Stage stage) final { return advance(stage, false); }
  void wait(Stage stage) final { advance(stage, true); }
  const Tokens& tokens() const final;
  void send_back(ConstRows y, Left left) final;
  void finish(Rows out) final;

 protected:
  // Have all peers come to the stage? block: wait until they have.
  virtual bool reached(Stage stage, bool block) = 0;
  // Brings the rows into expert order.
  virtual Tokens arrange() = 0;
  virtual void publish(ConstRows y, Left left) = 0;
  virtual void combine(Rows out) = 0;

  const RankShape& shape_;
  const Request request_;
  Communicator& comm_;
  Team& team_;

 private:
  enum class State { kDispatched, kArrived, kSentBack, kReturned, kFinished, kDrained };

  bool advance(Stage stage, bool block);
  void require(State state, const char* call) const;

  State state_ = State::kDispatched;
  Tokens tokens_;
};

}  // namespace trimtab
