// SPDX-License-Identifier: Apache-2.0
// A team packs what one thread packs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "experts/test_formats.h"
#include "experts/test_mlp.h"
#include "experts/test_quantised.h"
#include "experts/weights.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

void expect_same_parts(const PackedWeights& a, const PackedWeights& b) {
  for (const PackedPart& part : kPackedParts) {
    const Buffer &left = a.*part.buffer, &right = b.*part.buffer;
    ASSERT_EQ(left.bytes(), right.bytes()) << part.name;
    if (left.bytes() == 0) continue;
    EXPECT_EQ(std::memcmp(left.data(), right.data(), left.bytes()), 0) << part.name;
  }
}

TEST(PackingTest, ATeamPacksTheSameBitsInEveryFormat) {
  std::mt19937 random(11);
  // 19 and more panels of 16 columns, the last one not full; inputs that fill no group.
  const TestMlp mlp(200, 310, DType::kBF16, Form::kDense, true, random);
  const TestMatrix head = make_matrix(1037, 200, DType::kF32, Form::kTransposed, random);
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(name(format));
    const Mlp alone(mlp.source(), {}, format);
    const Linear linear(head.source, {}, format);
    for (const int threads : {2, 3, 7}) {
      Team team(threads);
      BufferArena arena;
      const Mlp packed(mlp.source(), {}, format, nullptr, &arena, &team);
      expect_same_parts(packed.gate_up_packed(), alone.gate_up_packed());
      expect_same_parts(packed.down_packed(), alone.down_packed());
      expect_same_parts(Linear(head.source, {}, format, nullptr, nullptr, &team).packed(),
                        linear.packed());
    }
  }
}

TEST(PackingTest, ATeamCopiesWhatIsQuantised) {
  std::mt19937 random(12);
  const Quantised int4(300, 256, 1, 32, DType::kU4, DType::kF32, true, random);
  const Quantised fp8(300, 256, 128, 128, DType::kF8E4M3, DType::kF32, false, random);
  Team team(3);
  const auto check = [&](const MatrixSource& source, WeightFormat format) {
    SCOPED_TRACE(name(format));
    expect_same_parts(Linear(source, {}, format, nullptr, nullptr, &team).packed(),
                      Linear(source, {}, format).packed());
  };
  check(int4.source, {Scheme::kW4A16, 32});
  check(int4.source, {Scheme::kW4A8, 32});
  check(int4.source, Scheme::kBF16);
  check(fp8.source, Scheme::kFP8);
}

// Many panels can't be stored: the error is that of one thread, however the team shares them out.
TEST(PackingTest, ATeamNamesTheFirstWeightThatCanNotBeStored) {
  std::mt19937 random(13);
  TestMatrix matrix = make_matrix(900, 64, DType::kF32, Form::kDense, random);
  for (int64_t row = 70; row < 900; row += 3)
    put(matrix.bytes.data() + 1 + (row * 64 + 5) * 4, DType::kF32, std::nanf(""));
  Team team(4);
  for (int round = 0; round < 50; ++round) {
    try {
      const Linear packed(matrix.source, {}, Scheme::kW8A8, nullptr, nullptr, &team);
      FAIL();
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), "the weight: weight 5 of row 70 is nan");
    }
  }
}

}  // namespace
}  // namespace trimtab::test
