// SPDX-License-Identifier: Apache-2.0
// The promise of Call: where its frame lives, what it waits for, and how its exception gets out.
#pragma once

#include <cstddef>
#include <exception>

#include "trimtab/layer.h"

namespace trimtab {

// Throws InvalidArgument when calls in these lanes can't be in flight at the same time.
void check_lanes(const Lane& first, const Lane& second);

// co_await Until{exchange, stage}: goes on at once when the stage is reached, else pauses the call.
struct Until {
  Exchange& exchange;
  Stage stage;
};

struct Call::promise_type {
  // The most a frame may take: layers reserve it in their workspace_bytes().
  static constexpr size_t kMaxFrameBytes = 8192;

  promise_type(const MoeLayer&, const LayerInput&, const LayerOutput&, Lane& lane,
               const ForwardOptions&)
      : lane_(lane) {}
  static void* operator new(size_t bytes, const MoeLayer&, const LayerInput&, const LayerOutput&,
                            Lane& lane, const ForwardOptions&) {
    return allocate(bytes, lane);
  }
  static void operator delete(void* frame) noexcept;

  Call get_return_object() { return Call(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { error_ = std::current_exception(); }

  auto await_transform(Until until) {
    struct Awaiter {
      promise_type& promise;
      Until until;
      bool await_ready() { return until.exchange.poll(until.stage); }
      void await_suspend(Handle) noexcept {
        promise.waits_for_ = &until.exchange;
        promise.stage_ = until.stage;
      }
      void await_resume() noexcept { promise.waits_for_ = nullptr; }
    };
    return Awaiter{*this, until};
  }

  Lane& lane() const { return lane_; }
  bool ready() { return waits_for_ == nullptr || waits_for_->poll(stage_); }
  void wait() {
    if (waits_for_ != nullptr) waits_for_->wait(stage_);
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static void* allocate(size_t bytes, Lane& lane);

  Lane& lane_;
  Exchange* waits_for_ = nullptr;
  Stage stage_ = Stage::kArrived;
  std::exception_ptr error_;
};

}  // namespace trimtab
