// SPDX-License-Identifier: Apache-2.0
// Writes the JSON object format of the Trace Event Format, with "X" for complete events, "C" for
// counters, "s" and "f" for flows, and "M" for names.
#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "base/file.h"
#include "base/quoted.h"
#include "trimtab/trace.h"

namespace trimtab {

namespace {

// Writes a list of objects. Each has a kind, a process and a thread, and may have more fields.
class Objects {
 public:
  void begin(char kind, std::string_view name, const TraceTrack& track) {
    text_ += text_.empty() ? "{\"ph\":\"" : ",\n{\"ph\":\"";
    text_ += kind;
    text_ += "\",\"name\":";
    json_quoted(name);
    text_ += ",\"pid\":";
    number(track.rank);
    text_ += ",\"tid\":";
    number(track.thread);
  }
  void end() { text_ += '}'; }

  // Writes microseconds with three decimals, which are the nanoseconds.
  void time(std::string_view field, int64_t ns) {
    key(field);
    if (ns < 0) text_ += '-';
    const uint64_t size = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
    number(size / 1000);
    const std::string rest = std::to_string(1000 + size % 1000);
    text_ += '.';
    text_ += std::string_view(rest).substr(1);
  }
  void field(std::string_view field, std::string_view value) {
    key(field);
    json_quoted(value);
  }
  void begin_args() { text_ += ",\"args\":{"; }
  void end_args() { text_ += '}'; }
  template <class Value>
  void arg(std::string_view name, const Value& value) {
    if (text_.back() != '{') text_ += ',';
    json_quoted(name);
    text_ += ':';
    if constexpr (std::is_integral_v<Value>) {
      number(value);
    } else {
      json_quoted(value);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  void key(std::string_view name) {
    text_ += ',';
    json_quoted(name);
    text_ += ':';
  }
  template <class Number>
  void number(Number value) {
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  void json_quoted(std::string_view text) { append_quoted(text_, text); }

  std::string text_;
};

void name_track(const TraceTrack& track, Objects& out) {
  out.begin('M', "process_name", track);
  out.begin_args();
  out.arg("name", "rank " + std::to_string(track.rank));
  out.end_args();
  out.end();
  out.begin('M', "process_sort_index", track);
  out.begin_args();
  out.arg("sort_index", track.rank);
  out.end_args();
  out.end();
  std::string name = track.name;
  if (const int64_t lost = track.buffer->overwritten(); lost > 0) {
    name += " (without the first " + std::to_string(lost) + " events)";
  }
  out.begin('M', "thread_name", track);
  out.begin_args();
  out.arg("name", name);
  out.end_args();
  out.end();
}

void write_flow(const TraceEvent& event, const TraceTrack& track, int64_t origin, Objects& out) {
  const bool starts = event.kind == TraceEvent::Kind::kFlowStart;
  out.begin(starts ? 's' : 'f', event.name, track);
  out.field("cat", "flow");
  out.field("id", std::to_string(event.arg.value));  // as text: numbers of JSON are doubles
  out.time("ts", event.time - origin);
  if (!starts) out.field("bp", "e");  // to the slice around it, not to the next one
  out.end();
}

void write_event(const TraceEvent& event, const TraceTrack& track, int64_t origin, Objects& out) {
  using enum TraceEvent::Kind;
  switch (event.kind) {
    case kSlice:
      out.begin('X', event.name, track);
      out.time("ts", event.time - origin);
      out.time("dur", event.duration);
      out.begin_args();
      if (event.layer >= 0) out.arg("moe_layer", event.layer);
      if (event.arg.name != nullptr) out.arg(event.arg.name, event.arg.value);
      out.end_args();
      out.end();
      break;
    case kCounter:
      out.begin('C', event.name, track);
      out.time("ts", event.time - origin);
      out.begin_args();
      out.arg(event.name, event.arg.value);
      out.end_args();
      out.end();
      break;
    case kFlowStart:
    case kFlowEnd:
      write_flow(event, track, origin, out);
      break;
  }
}

}  // namespace

std::string chrome_trace_events(std::span<const TraceTrack> tracks, int64_t origin) {
  Objects out;
  for (const TraceTrack& track : tracks) {
    name_track(track, out);
    for (const TraceEvent& event : track.buffer->events()) write_event(event, track, origin, out);
  }
  return out.take();
}

std::string chrome_trace(std::span<const std::string> events) {
  std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  bool first = true;
  for (const std::string& part : events) {
    if (part.empty()) continue;
    if (!first) text += ",\n";
    text += part;
    first = false;
  }
  return text + "\n]}\n";
}

void write_chrome_trace(const std::string& path, std::span<const std::string> events) {
  const std::string text = chrome_trace(events);
  write_file(path, {std::as_bytes(std::span(text))});
}

void write_chrome_trace(const std::string& path, std::span<const TraceTrack> tracks) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const TraceTrack& track : tracks) {
    for (const TraceEvent& event : track.buffer->events()) origin = std::min(origin, event.time);
  }
  write_chrome_trace(path, std::vector{chrome_trace_events(tracks, origin)});
}

}  // namespace trimtab
