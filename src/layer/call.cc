// SPDX-License-Identifier: Apache-2.0
#include "layer/call.h"

#include <new>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Stands in front of a frame, so that its end gives back all that the call took from the workspace.
struct FrameHeader {
  Lane* lane;
  size_t mark;
};
constexpr size_t kHeaderBytes = Workspace::padded(sizeof(FrameHeader));

}  // namespace

void* Call::promise_type::allocate(size_t bytes, Lane& lane) {
  if (lane.has_call) throw InvalidArgument("MoE layer: another call is in flight in this lane");
  if (bytes + kHeaderBytes > kMaxFrameBytes) {
    throw InvalidArgument(cat("a call's frame takes ", bytes, " bytes, ",
                              kMaxFrameBytes - kHeaderBytes, " reserved"));
  }
  const size_t mark = lane.workspace.mark();
  std::byte* memory = lane.workspace.take_bytes(kHeaderBytes + bytes);
  new (memory) FrameHeader{&lane, mark};
  lane.has_call = true;
  return memory + kHeaderBytes;
}

void Call::promise_type::operator delete(void* frame) noexcept {
  const auto* header =
      reinterpret_cast<FrameHeader*>(static_cast<std::byte*>(frame) - kHeaderBytes);
  header->lane->workspace.release(header->mark);
  header->lane->has_call = false;
}

Call::~Call() {
  if (handle_) handle_.destroy();
}

const Lane& Call::lane() const {
  if (!handle_) throw InvalidArgument("MoE layer: a call that was moved from");
  return handle_.promise().lane();
}

bool Call::finished() const {
  lane();
  return handle_.done();
}

bool Call::advance() {
  while (!finished() && handle_.promise().ready()) handle_.resume();
  if (finished()) handle_.promise().rethrow();
  return finished();
}

void Call::block() {
  lane();
  handle_.promise().wait();
  advance();
}

void run(Call call) {
  while (!call.advance()) call.block();
}

namespace {

// What two calls in flight must not share. Only compared: the lane may be gone. Null before the
// first call.
struct LaneResources {
  LaneResources() = default;
  explicit LaneResources(const Lane& lane) : comm(&lane.comm), workspace(&lane.workspace) {}
  const Communicator* comm = nullptr;
  const Workspace* workspace = nullptr;
};

void check_apart(const LaneResources& first, const LaneResources& second) {
  if (first.comm != second.comm && first.workspace != second.workspace) return;
  throw InvalidArgument(
      "MoE layer: calls that overlap need lanes that share no Communicator and no Workspace");
}

}  // namespace

void check_lanes(const Lane& first, const Lane& second) {
  check_apart(LaneResources(first), LaneResources(second));
}

void overlap(Call first, Call second) {
  check_lanes(first.lane(), second.lane());
  while (!first.finished()) {
    first.advance();
    second.advance();
    if (!first.finished()) first.block();
  }
  while (!second.advance()) second.block();
}

namespace {

// One microbatch on its way through the layers.
class Microbatch {
 public:
  Microbatch(int64_t layers, int number, const std::function<Call(int64_t, int)>& make)
      : layers_(layers), number_(number), make_(make) {}

  int64_t layer() const { return layer_; }
  // Goes on for as long as nothing has to be waited for. Whether the other microbatch's call is
  // still in flight depends on how fast the peers are; that the lanes are apart must not.
  void advance(const Microbatch& other) {
    for (; layer_ < layers_; ++layer_) {
      if (!call_) {
        call_.emplace(make_(layer_, number_));
        resources_ = LaneResources(call_->lane());
        check_apart(resources_, other.resources_);
      }
      if (!call_->advance()) return;
      call_.reset();
    }
  }
  void block() { call_->block(); }

 private:
  int64_t layers_;
  int number_;
  const std::function<Call(int64_t, int)>& make_;
  int64_t layer_ = 0;
  std::optional<Call> call_;
  LaneResources resources_;  // of the newest call
};

}  // namespace

void overlap(int64_t layers, const std::function<Call(int64_t layer, int microbatch)>& make) {
  Microbatch first(layers, 0, make), second(layers, 1, make);
  for (;;) {
    first.advance(second);
    second.advance(first);
    Microbatch& oldest = first.layer() <= second.layer() ? first : second;
    if (oldest.layer() == layers) return;
    oldest.block();
  }
}

}  // namespace trimtab
