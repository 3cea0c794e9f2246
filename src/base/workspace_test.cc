// SPDX-License-Identifier: Apache-2.0
#include "trimtab/workspace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "base/allocation_count.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(Workspace, HandsOutAlignedPiecesThatDoNotOverlap) {
  Workspace workspace(1024);
  EXPECT_EQ(workspace.capacity(), 1024U);
  std::byte* a = workspace.take_bytes(1);
  std::byte* b = workspace.take_bytes(65);
  std::byte* c = workspace.take_bytes(64);
  EXPECT_EQ(b - a, 64);
  EXPECT_EQ(c - b, 128);
  for (const std::byte* p : {a, b, c}) EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0U);
  EXPECT_EQ(workspace.mark(), 256U);
}

TEST(Workspace, TypedPieces) {
  Workspace workspace(4096);
  const std::span<int32_t> ids = workspace.take<int32_t>(10);
  EXPECT_EQ(ids.size(), 10U);
  EXPECT_EQ(workspace.mark(), 64U);
  const Rows rows = workspace.take_rows(3, 5, DType::kBF16);
  EXPECT_EQ(rows.rows, 3);
  EXPECT_EQ(rows.cols, 5);
  EXPECT_EQ(rows.stride, 5);
  EXPECT_EQ(rows.dtype, DType::kBF16);
  EXPECT_EQ(workspace.mark(), 128U);
  EXPECT_TRUE(workspace.take<float>(0).empty());
  EXPECT_EQ(workspace.mark(), 128U);
}

TEST(Workspace, ReleaseGivesBackAndPeakRemembers) {
  Workspace workspace(640);
  workspace.take_bytes(64);
  const size_t mark = workspace.mark();
  std::byte* first = workspace.take_bytes(512);
  workspace.release(mark);
  EXPECT_EQ(workspace.mark(), 64U);
  EXPECT_EQ(workspace.take_bytes(64), first);
  EXPECT_EQ(workspace.peak(), 576U);
}

TEST(Workspace, ThrowsInsteadOfGrowing) {
  Workspace workspace(256);
  workspace.take_bytes(100);
  const auto refused = [&](size_t bytes) {
    try {
      workspace.take_bytes(bytes);
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string text = refused(129);
  for (const char* part : {"129", "128", "256"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  for (size_t less = 0; less < 130; less += 43)
    EXPECT_NE(refused(std::numeric_limits<size_t>::max() - less), "");
  EXPECT_EQ(workspace.mark(), 128U);  // a refusal takes nothing
  EXPECT_NE(workspace.take_bytes(128), nullptr);
  EXPECT_NE(refused(1), "");
}

TEST(Workspace, PaddedIsWhatATakeUses) {
  for (const size_t bytes : {0U, 1U, 63U, 64U, 65U, 1000U}) {
    Workspace workspace(2048);
    workspace.take_bytes(bytes);
    EXPECT_EQ(workspace.mark(), Workspace::padded(bytes));
  }
}

TEST(Workspace, TakingDoesNotAllocate) {
  Workspace workspace(4096);
  const int64_t before = allocation_count();
  workspace.take_rows(4, 16, DType::kF32);
  workspace.take<int64_t>(7);
  workspace.release(0);
  EXPECT_EQ(allocation_count(), before);
}

}  // namespace
}  // namespace trimtab
