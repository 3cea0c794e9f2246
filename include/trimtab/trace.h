// SPDX-License-Identifier: Apache-2.0
// Records where the time of each rank and thread goes: slices (route, dispatch, experts, combine,
// ...), counters, and flows from one slice to another. The memory is reserved beforehand. The
// result is written as Chrome Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.
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
  const char* name = nullptr;  // null: there is no number
  int64_t value = 0;
};

// One event. All names are string literals, since their text must live as long as the buffer.
struct TraceEvent {
  enum class Kind : int8_t { kSlice, kCounter, kFlowStart, kFlowEnd };

  Kind kind = Kind::kSlice;
  int32_t layer = -1;  // the MoE layer, or -1
  const char* name = nullptr;
  int64_t time = 0;      // ns, as TraceBuffer::now() has it; a slice has its begin here
  int64_t duration = 0;  // ns, for slices
  TraceArg arg;          // the value of a counter, the id of a flow
};

// The events of one thread. Their number is bounded: the newest overwrite the oldest. Nothing is
// allocated after construction. Only its own thread records; others may read when it has stopped.
class TraceBuffer {
 public:
  // capacity: events, at least 1; rounded up to a power of two. Throws InvalidArgument.
  explicit TraceBuffer(int64_t capacity);

  static int64_t now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Records a slice from `begin`, a now() of this thread, until now. Slices may stand inside each
  // other, but must not overlap otherwise. Returns the end of the slice, so that the next one can
  // begin there without another look at the clock.
  int64_t slice(const char* name, int64_t begin, int32_t layer = -1, TraceArg arg = {}) noexcept {
    const int64_t end = now();
    record({TraceEvent::Kind::kSlice, layer, name, begin, end - begin, arg});
    return end;
  }
  // Records a value from `time` on. Counters of one name on one rank are one line of the drawing.
  void counter(const char* name, int64_t time, int64_t value) noexcept {
    record({TraceEvent::Kind::kCounter, -1, name, time, 0, {nullptr, value}});
  }
  // Record an arrow from the slice around `time` on the sending rank to one on the receiving rank.
  // Both ends have the same name and an id that no other arrow of the trace has.
  void flow_start(const char* name, int64_t time, int64_t id) noexcept {
    record({TraceEvent::Kind::kFlowStart, -1, name, time, 0, {nullptr, id}});
  }
  void flow_end(const char* name, int64_t time, int64_t id) noexcept {
    record({TraceEvent::Kind::kFlowEnd, -1, name, time, 0, {nullptr, id}});
  }

  int64_t capacity() const { return mask_ + 1; }
  int64_t overwritten() const { return recorded_ > capacity() ? recorded_ - capacity() : 0; }
  // The events that are left, in the order of recording. A slice is recorded when it ends.
  std::vector<TraceEvent> events() const;

 private:
  void record(const TraceEvent& event) noexcept { events_[recorded_++ & mask_] = event; }

  int64_t mask_;
  int64_t recorded_ = 0;
  std::unique_ptr<TraceEvent[]> events_;  // [capacity]
};

// Records slices that follow each other. Without a buffer it does nothing and does not even look at
// the clock.
class TraceSteps {
 public:
  explicit TraceSteps(TraceBuffer* buffer, int32_t layer = -1) noexcept
      : buffer_(buffer), layer_(layer) {
    resume();
  }
  // Records a slice since the last step() or resume().
  void step(const char* name, TraceArg arg = {}) noexcept {
    if (buffer_ != nullptr) time_ = buffer_->slice(name, time_, layer_, arg);
  }
  // Leaves out the time since the last step().
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
  int thread = 0;    // the thread of the rank; 0 is the one that runs the steps
  std::string name;  // e.g. "steps"
  const TraceBuffer* buffer = nullptr;
};

// Returns the events of the tracks as JSON objects with commas between them, for chrome_trace().
// Ranks in other processes send their events as this text. origin: the now() that becomes time 0. A
// track whose buffer has overwritten events says so in its name. Viewers do not draw a flow that
// has lost an end with them.
std::string chrome_trace_events(std::span<const TraceTrack> tracks, int64_t origin);
// Returns a whole file made of such lists, of which some may be empty.
std::string chrome_trace(std::span<const std::string> events);
// Writes to a new file that replaces path when it is complete. Throws Error on I/O failure.
void write_chrome_trace(const std::string& path, std::span<const std::string> events);
// The same for the tracks of one process. Time 0 is the time of the earliest event.
void write_chrome_trace(const std::string& path, std::span<const TraceTrack> tracks);

}  // namespace trimtab
