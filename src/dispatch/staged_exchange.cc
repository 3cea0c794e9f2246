// SPDX-License-Identifier: Apache-2.0
#include "dispatch/staged_exchange.h"

#include "base/cat.h"
#include "base/rows.h"
#include "trimtab/error.h"

namespace trimtab {

StagedExchange::~StagedExchange() {
  if (state_ != State::kDrained) comm_.abort("an exchange was dropped before it was drained");
  lane_.has_exchange = false;
}

const Tokens& StagedExchange::tokens() const {
  if (state_ < State::kArrived) require(State::kArrived, "tokens()");
  return tokens_;
}

void StagedExchange::send_back(ConstRows y, Left left) {
  require(State::kArrived, "send_back()");
  shape_.check_answer(y, left, tokens_);
  if (overlap(y, request_.x)) throw InvalidArgument("send_back: y overlaps the x of the request");
  y_ = y;
  publish(y, left);
  state_ = State::kSentBack;
}

void StagedExchange::finish(Rows out) {
  require(State::kReturned, "finish()");
  shape_.check_out(out, request_.x);
  if (overlap(out, y_)) throw InvalidArgument("finish: out overlaps the y of send_back()");
  combine(out);
  state_ = State::kFinished;
}

bool StagedExchange::advance(Stage stage, bool block) {
  struct Step {
    State before, after;
    const char* name;
    const char* wait;
  };
  static constexpr Step kSteps[] = {
      {State::kDispatched, State::kArrived, "kArrived", "wait for tokens"},
      {State::kSentBack, State::kReturned, "kReturned", "wait for results"},
      {State::kFinished, State::kDrained, "kDrained", "wait for readers"}};
  const Step& step = kSteps[static_cast<size_t>(stage)];
  if (state_ >= step.after) return true;
  require(step.before, step.name);
  TraceSteps trace(lane_.trace);
  if (!come_to(stage, block)) return false;
  if (block) trace.step(step.wait);
  if (stage == Stage::kArrived) {
    if (over_budget()) {
      end_on_all_ranks();
      return true;
    }
    if (!block) trace.resume();
    tokens_ = arrange();
    trace.step("sort rows");
  }
  state_ = step.after;
  return true;
}

void StagedExchange::require(State state, const char* call) const {
  static constexpr const char* kNames[] = {"dispatch",  "kArrived", "send_back",
                                           "kReturned", "finish",   "kDrained"};
  if (state_ == state) return;
  throw InvalidArgument(cat("exchange: ", call, " comes after ", kNames[static_cast<size_t>(state)],
                            ", but the exchange is at ", kNames[static_cast<size_t>(state_)]));
}

}  // namespace trimtab
