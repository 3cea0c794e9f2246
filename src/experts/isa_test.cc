// SPDX-License-Identifier: Apache-2.0
#include "experts/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {
namespace {

TEST(IsaTest, ScalarIsAlwaysThereAndTheBestIsTheDefault) {
  const auto available = available_kernels();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available.front(), &kScalarKernels);
  EXPECT_EQ(&select_kernels("", available), available.back());
  for (const GemmKernels* kernels : available)
    EXPECT_EQ(&select_kernels(kernels->isa, available), kernels);
}

TEST(IsaTest, RefusesWhatIsUnknownOrNotAvailable) {
  const std::vector<const GemmKernels*> plain_cpu = {&kScalarKernels};
  for (const char* name : {"avx512", "neon", "AVX2", " "}) {
    try {
      select_kernels(name, plain_cpu);
      ADD_FAILURE() << name;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::string("TRIMTAB_ISA=") + name), std::string::npos) << text;
      EXPECT_NE(text.find("scalar, avx2, avx2_vnni, avx512"), std::string::npos) << text;
    }
  }
}

// kernel_isa() reads the environment once in a process, so each case has its own.
class KernelIsaDeathTest : public testing::Test {
 protected:
  KernelIsaDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // 0: the name is in force; 1: another is; 2: refused.
  static int outcome(const char* name) {
    ::setenv("TRIMTAB_ISA", name, 1);
    try {
      return kernel_isa() == name ? 0 : 1;
    } catch (const InvalidArgument&) {
      return 2;
    }
  }
};

TEST_F(KernelIsaDeathTest, TheEnvironmentChooses) {
  for (const GemmKernels* kernels : available_kernels()) {
    EXPECT_EXIT(std::exit(outcome(kernels->isa)), testing::ExitedWithCode(0), "") << kernels->isa;
  }
  EXPECT_EXIT(std::exit(outcome("sse9")), testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace trimtab
