// SPDX-License-Identifier: Apache-2.0
// Where the time of each rank and thread goes: slices (route, dispatch, experts, combine, ...),
// counters and flows from one slice to another, recorded into memory reserved before and written as
// Chrome Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trimtab {

// A number that belongs to a slice, e.g. {"rows", 17}.
struct TraceArg {
  const char* name = nullptr;  // none
  int64_t value = 0;
};

// All names are string literals: their text must live for as long as the buffer.
struct TraceEvent {
  enum class Kind : int8_t { kSlice, kCounter, kFlowStart, kFlowEnd };

  Kind kind = Kind::kSlice;
  int32_t layer = -1;  // MoE layer; -1: of none
  const char* name = nullptr;
  int64_t time = 0;      // ns, of TraceBuffer::now(); of a slice its begin
  int64_t duration = 0;  // ns, of a slice
  TraceArg arg;          // of a counter its value, of a flow its id
};

// The events of one thread. Bounded: the newest overwrite the oldest. Nothing is allocated after
// construction. Only the thread that it belongs to records; others read when it has stopped.
class TraceBuffer {
 public:
  // capacity: events, at least 1; rounded up to a power of two. Throws InvalidArgument.
  explicit TraceBuffer(int64_t capacity);

  static int64_t now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // What took place since begin, a now() of this thread. Slices may be inside each other, but not
  // overlap otherwise. Returns its end, so that what follows can begin there without another look
  // at the clock.
  int64_t slice(const char* name, int64_t begin, int32_t layer = -1, TraceArg arg = {}) noexcept {
    const int64_t end = now();
    record({TraceEvent::Kind::kSlice, layer, name, begin, end - begin, arg});
    return end;
  }
  // A value from `time` on. Counters of the same name on the same rank are one line of the drawing.
  void counter(const char* name, int64_t time, int64_t value) noexcept {
    record({TraceEvent::Kind::kCounter, -1, name, time, 0, {nullptr, value}});
  }
  // An arrow from the slice that `time` is in, on the sending rank, to one on the receiving rank.
  // Both ends have the same name and an id that no other arrow of the trace has.
  void flow_start(const char* name, int64_t time, int64_t id) noexcept {
    record({TraceEvent::Kind::kFlowStart, -1, name, time, 0, {nullptr, id}});
  }
  void flow_end(const char* name, int64_t time, int64_t id) noexcept {
    record({TraceEvent::Kind::kFlowEnd, -1, name, time, 0, {nullptr, id}});
  }

  int64_t capacity() const { return mask_ + 1; }
  int64_t overwritten() const { return recorded_ > capacity() ? recorded_ - capacity() : 0; }
  // Those that are left, in the order in which they were recorded: a slice when it ended.
  std::vector<TraceEvent> events() const;

 private:
  void record(const TraceEvent& event) noexcept { events_[recorded_++ & mask_] = event; }

  int64_t mask_;
  int64_t recorded_ = 0;
  std::unique_ptr<TraceEvent[]> events_;  // [capacity]
};

// Records slices that follow each other; without a buffer it does nothing, not even look at the
// clock.
class TraceSteps {
 public:
  explicit TraceSteps(TraceBuffer* buffer, int32_t layer = -1) noexcept
      : buffer_(buffer), layer_(layer) {
    resume();
  }
  // What took place since the last step or resume().
  void step(const char* name, TraceArg arg = {}) noexcept {
    if (buffer_ != nullptr) time_ = buffer_->slice(name, time_, layer_, arg);
  }
  // What took place in between belongs to nobody here.
  void resume() noexcept {
    if (buffer_ != nullptr) time_ = TraceBuffer::now();
  }
  void counter(const char* name, int64_t value) noexcept {
    if (buffer_ != nullptr) buffer_->counter(name, time_, value);
  }

 private:
  TraceBuffer* buffer_;
  int32_t layer_;
  int64_t time_ = 0;
};

// One row of the drawing.
struct TraceTrack {
  int rank = 0;      // the trace's process
  int thread = 0;    // of the rank; 0 is the one that runs the steps
  std::string name;  // e.g. "steps"
  const TraceBuffer* buffer = nullptr;
};

// The tracks' events as a list of JSON objects, comma between them, for chrome_trace(); ranks in
// other processes send theirs as this text. origin: the now() that becomes time 0. A track whose
// buffer has overwritten events says so in its name; a flow that lost an end with them is one that
// viewers do not draw.
std::string chrome_trace_events(std::span<const TraceTrack> tracks, int64_t origin);
// A whole file from such lists; empty ones may be among them.
std::string chrome_trace(std::span<const std::string> events);
// To a new file that replaces path when complete. Throws Error on I/O failure.
void write_chrome_trace(const std::string& path, std::span<const std::string> events);
// The same for tracks of one process; time 0 is that of the earliest event.
void write_chrome_trace(const std::string& path, std::span<const TraceTrack> tracks);

}  // namespace trimtab
