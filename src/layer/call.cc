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
  Workspace* workspace;
  size_t mark;
};
constexpr size_t kHeaderBytes = Workspace::padded(sizeof(FrameHeader));

}  // namespace

void* Call::promise_type::allocate(size_t bytes, Workspace& workspace) {
  if (bytes + kHeaderBytes > kMaxFrameBytes) {
    throw InvalidArgument(cat("a call's frame takes ", bytes, " bytes, ",
                              kMaxFrameBytes - kHeaderBytes, " reserved"));
  }
  const size_t mark = workspace.mark();
  std::byte* memory = workspace.take_bytes(kHeaderBytes + bytes);
  new (memory) FrameHeader{&workspace, mark};
  return memory + kHeaderBytes;
}

void Call::promise_type::operator delete(void* frame) noexcept {
  const auto* header =
      reinterpret_cast<FrameHeader*>(static_cast<std::byte*>(frame) - kHeaderBytes);
  header->workspace->release(header->mark);
}

Call::~Call() {
  if (handle_) handle_.destroy();
}

bool Call::finished() const {
  return handle_.done();
}

bool Call::advance() {
  while (!finished() && handle_.promise().ready()) handle_.resume();
  if (finished()) handle_.promise().rethrow();
  return finished();
}

void Call::block() {
  handle_.promise().wait();
  advance();
}

void run(Call call) {
  while (!call.advance()) call.block();
}

void overlap(Call first, Call second) {
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
  // Goes on for as long as nothing has to be waited for.
  void advance() {
    for (; layer_ < layers_; ++layer_) {
      if (!call_) call_.emplace(make_(layer_, number_));
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
};

}  // namespace

void overlap(int64_t layers, const std::function<Call(int64_t layer, int microbatch)>& make) {
  Microbatch first(layers, 0, make), second(layers, 1, make);
  for (;;) {
    first.advance();
    second.advance();
    Microbatch& oldest = first.layer() <= second.layer() ? first : second;
    if (oldest.layer() == layers) return;
    oldest.block();
  }
}

}  // namespace trimtab
