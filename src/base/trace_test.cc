// SPDX-License-Identifier: Apache-2.0
#include "trimtab/trace.h"

#include <gtest/gtest.h>

#include <string>

#include "base/allocation_count.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(TraceBuffer, KeepsWhatWasRecordedInOrder) {
  TraceBuffer buffer(8);
  const int64_t begin = TraceBuffer::now();
  const int64_t end = buffer.slice("a", begin, 3, {"rows", 17});
  buffer.counter("c", end, -5);
  buffer.flow_start("f", end, 7);
  buffer.flow_end("f", end, 7);
  const std::vector<TraceEvent> events = buffer.events();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].kind, TraceEvent::Kind::kSlice);
  EXPECT_EQ(events[0].name, std::string("a"));
  EXPECT_EQ(events[0].layer, 3);
  EXPECT_EQ(events[0].time, begin);
  EXPECT_EQ(events[0].duration, end - begin);
  EXPECT_GE(events[0].duration, 0);
  EXPECT_EQ(events[0].arg.name, std::string("rows"));
  EXPECT_EQ(events[0].arg.value, 17);
  EXPECT_EQ(events[1].kind, TraceEvent::Kind::kCounter);
  EXPECT_EQ(events[1].arg.value, -5);
  EXPECT_EQ(events[2].kind, TraceEvent::Kind::kFlowStart);
  EXPECT_EQ(events[3].kind, TraceEvent::Kind::kFlowEnd);
  EXPECT_EQ(events[3].arg.value, 7);
  EXPECT_EQ(buffer.overwritten(), 0);
}

TEST(TraceBuffer, TheNewestOverwriteTheOldest) {
  TraceBuffer buffer(3);
  EXPECT_EQ(buffer.capacity(), 4);
  for (int64_t i = 0; i < 11; ++i) {
    buffer.counter("c", i, i);
    const std::vector<TraceEvent> events = buffer.events();
    const auto kept = std::min<int64_t>(i + 1, 4);
    ASSERT_EQ(std::ssize(events), kept);
    EXPECT_EQ(buffer.overwritten(), i + 1 - kept);
    for (int64_t k = 0; k < kept; ++k) EXPECT_EQ(events[k].time, i + 1 - kept + k);
  }
}

TEST(TraceBuffer, ACapacityOfNoneIsRefused) {
  EXPECT_EQ(TraceBuffer(1).capacity(), 1);
  EXPECT_THROW(TraceBuffer(0), InvalidArgument);
  EXPECT_THROW(TraceBuffer(-1), InvalidArgument);
  EXPECT_THROW(TraceBuffer(int64_t{1} << 62), InvalidArgument);
}

TEST(TraceSteps, FollowEachOtherWithoutGapsUnlessResumed) {
  TraceBuffer buffer(8);
  TraceSteps steps(&buffer, 2);
  steps.step("a");
  steps.step("b", {"rows", 1});
  steps.resume();
  steps.step("c");
  const std::vector<TraceEvent> events = buffer.events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].time, events[0].time + events[0].duration);
  EXPECT_GE(events[2].time, events[1].time + events[1].duration);
  for (const TraceEvent& event : events) EXPECT_EQ(event.layer, 2);
}

TEST(TraceSteps, AreNothingWithoutABuffer) {
  TraceSteps steps(nullptr);
  steps.step("a");
  steps.resume();
  steps.counter("c", 1);
}

TEST(TraceBuffer, RecordingTakesNoMemory) {
  TraceBuffer buffer(16);
  const int64_t before = allocation_count();
  TraceSteps steps(&buffer);
  for (int i = 0; i < 100; ++i) {
    steps.step("a");
    steps.counter("c", i);
  }
  EXPECT_EQ(allocation_count(), before);
  EXPECT_EQ(buffer.overwritten(), 184);
}

}  // namespace
}  // namespace trimtab
