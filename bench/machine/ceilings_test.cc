// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/ceilings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

class EachLevel : public testing::TestWithParam<const IsaLoops*> {};

// No real machine is outside: from a tenth of one to a thousand billion operations a second for
// each thread.
TEST_P(EachLevel, CeilingsArePlausible) {
  for (const int threads : {1, 2}) {
    Team team(threads);
    Ceilings ceilings(*GetParam(), team, 4 * kMegabyte);
    for (const DotKind kind : {DotKind::kF32, DotKind::kBF16, DotKind::kI8}) {
      const double peak = ceilings.peak(kind);
      EXPECT_TRUE(1e8 < peak && peak < threads * 1e13) << peak;
    }
    for (int i = 0; i < 3; ++i) {
      const double stream = ceilings.stream();
      EXPECT_TRUE(1e7 < stream && stream < threads * 1e12) << stream;
    }
  }
}

// That a loop is not dropped shows in its time: it grows with the rounds.
TEST_P(EachLevel, MoreRoundsTakeLonger) {
  alignas(64) const std::byte operand[64] = {};
  alignas(64) std::byte sink[64];
  for (const DotLoop& dots : GetParam()->dots) {
    if (dots.instruction == nullptr) continue;
    const auto time = [&](int64_t rounds) {
      double best = 1e9;
      for (int i = 0; i < 9; ++i) {
        timespec start{}, end{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        dots.run(rounds, operand, sink);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        best = std::min(best, static_cast<double>(end.tv_sec - start.tv_sec) +
                                  1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
      }
      return best;
    };
    EXPECT_GT(time(200'000), 4 * time(20'000)) << dots.instruction;
  }
}

TEST_P(EachLevel, ReadsEveryByte) {
  alignas(64) std::byte memory[2048] = {};
  alignas(64) std::byte none[64] = {}, some[64] = {};
  GetParam()->read(memory, sizeof(memory), none);
  for (size_t i = 0; i < sizeof(memory); ++i) {
    memory[i] = std::byte{1};
    GetParam()->read(memory, sizeof(memory), some);
    EXPECT_NE(std::memcmp(none, some, sizeof(none)), 0) << i;
    memory[i] = std::byte{0};
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(, EachLevel, testing::ValuesIn(available_loops()),
                         [](const auto& one) { return std::string(one.param->isa); });

TEST(Ceilings, WithoutAnInstructionElementsAreWidened) {
  EXPECT_STREQ(dot_loop(kScalarLoops, DotKind::kI8).instruction, kScalarLoops.dots[0].instruction);
}

// The kernels read TRIMTAB_ISA once in a process, so each case has its own.
class LevelDeathTest : public testing::Test {
 protected:
  LevelDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // 0: `level` is in force; 1: another is; 2: refused.
  static int outcome(const char* wanted, const char* level) {
    setenv("TRIMTAB_ISA", wanted, 1);
    try {
      return std::strcmp(chosen_loops().isa, level) == 0 ? 0 : 1;
    } catch (const InvalidArgument&) {
      return 2;
    }
  }
};

TEST_F(LevelDeathTest, IsTheOneOfTheKernels) {
  EXPECT_EXIT(std::exit(outcome("scalar", "scalar")), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(outcome("", available_loops().back()->isa)), testing::ExitedWithCode(0),
              "");
  EXPECT_EXIT(std::exit(outcome("avx9", "")), testing::ExitedWithCode(2), "");
}

TEST(Ceilings, ColdMemoryLeavesHalfOfWhatIsFree) {
  EXPECT_EQ(cold_bytes(kMegabyte), kMegabyte);
  EXPECT_LT(cold_bytes(size_t{1} << 60), size_t{1} << 50);
}

}  // namespace
}  // namespace trimtab::bench
