// SPDX-License-Identifier: Apache-2.0
#include "layer/call.h"

#include <new>
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
    throw InvalidArgument(cat("a call's frame takes ", bytes, " bytes, ", kMaxFrameBytes - kHeaderBytes, " reserved"));
  }
  const size_t mark = workspace.mark();
  std::byte* memory = workspace.take_bytes(kHeaderBytes + bytes);
  new (memory) FrameHeader{&workspace, mark};
  return memory + kHeaderBytes;
}

void Call::promise_type::operator delete(void* frame) noexcept {
  const auto* header = reinterpret_cast<FrameHeader*>(static_cast<std::byte*>(frame) - kHeaderBytes);
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

}  // namespace trimtab
