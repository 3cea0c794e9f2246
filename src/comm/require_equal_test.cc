// SPDX-License-Identifier: Apache-2.0
#include "trimtab/require_equal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

class RequireEqual : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RequireEqual, testing::ValuesIn(rank_counts({1, 2, 3, 4, 7})),
                         testing::PrintToStringParamName());

// The text of the InvalidArgument that this rank gets, or "" where it gets none.
std::string refusal(Communicator& comm, const std::vector<NamedDigest>& mine) {
  try {
    require_equal(comm, mine);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST_P(RequireEqual, RanksThatAreEqualGoOn) {
  run_group(GetParam(), [](Communicator& comm) {
    for (int round = 0; round < 3; ++round) {
      require_equal(comm, {});
      const NamedDigest digests[] = {named_value("--steps", "12"), {"the model", 77, ""}};
      require_equal(comm, digests);
    }
    // In another order on every rank.
    std::vector<NamedDigest> rotated = {named_value("a", "1"), named_value("b", "2"),
                                        named_value("c", "3")};
    std::rotate(rotated.begin(), rotated.begin() + comm.rank() % 3, rotated.end());
    require_equal(comm, rotated);
  });
}

TEST_P(RequireEqual, EveryRankGetsTheSameTextAndTheGroupGoesOn) {
  const int ranks = GetParam();
  if (ranks == 1) return;
  run_group(ranks, [ranks](Communicator& comm) {
    const int last = ranks - 1;
    const bool odd_one = comm.rank() == last;
    const std::string at_last = " on rank " + std::to_string(last);
    EXPECT_EQ(
        refusal(comm, {named_value("--steps", odd_one ? "20" : "12"), named_value("--ranks", "4")}),
        "the ranks were started differently: --steps: 12 on rank 0, 20" + at_last);
    EXPECT_EQ(refusal(comm, {{"the model", odd_one ? 1U : 2U, ""}}),
              "the ranks were started differently: the model: not the same on rank 0 and rank " +
                  std::to_string(last));
    EXPECT_EQ(refusal(comm, {{"map.json", odd_one ? 1U : 2U, "/a"}}),
              "the ranks were started differently: map.json (/a): not the same on rank 0 and "
              "rank " +
                  std::to_string(last));
    EXPECT_EQ(refusal(comm, odd_one ? std::vector{named_value("--eplb", "")}
                                    : std::vector{named_value("--eplb", "dynamic")}),
              "the ranks were started differently: --eplb: dynamic on rank 0, (empty)" + at_last);
    EXPECT_EQ(refusal(comm, odd_one ? std::vector<NamedDigest>{}
                                    : std::vector{named_value("--seed", "1")}),
              "the ranks were started differently: --seed: given on rank 0, not" + at_last);
    EXPECT_EQ(refusal(comm, odd_one ? std::vector{named_value("--seed", "1")}
                                    : std::vector<NamedDigest>{}),
              "the ranks were started differently: --seed: given" + at_last + ", not on rank 0");
    require_equal(comm, {});
    comm.barrier();
  });
}

TEST_P(RequireEqual, ManyDifferencesAreCountedAndLongValuesCut) {
  const int ranks = GetParam();
  if (ranks == 1) return;
  run_group(ranks, [ranks](Communicator& comm) {
    std::vector<NamedDigest> mine;
    for (int i = 0; i < 10; ++i) {
      mine.push_back(named_value("option " + std::to_string(i),
                                 std::string(1000, static_cast<char>('a' + comm.rank()))));
    }
    const std::string text = refusal(comm, mine);
    EXPECT_NE(text.find("option 7: " + std::string(120, 'a') + "... on rank 0"), std::string::npos)
        << text;
    const int more = 10 * (ranks - 1) - 8;
    EXPECT_NE(text.find("; and " + std::to_string(more) + " more differences"), std::string::npos)
        << text;
    EXPECT_LT(text.size(), 4000U);
  });
}

TEST_P(RequireEqual, ANameThatIsGivenTwiceIsToldToAll) {
  const int ranks = GetParam();
  run_group(ranks, [ranks](Communicator& comm) {
    std::vector<NamedDigest> mine = {named_value("a", "1")};
    if (comm.rank() == ranks - 1) mine.push_back(mine.front());
    EXPECT_EQ(refusal(comm, mine), "the ranks were started differently: rank " +
                                       std::to_string(ranks - 1) + " names a twice");
  });
}

TEST(RequireEqualTest, APeerThatFailsIsACommError) {
  TRIMTAB_NEEDS_RANKS(2);
  EXPECT_THROW(run_group(2,
                         [](Communicator& comm) {
                           if (comm.rank() == 1) throw InvalidArgument("no such file");
                           EXPECT_THROW(require_equal(comm, {}), CommError);
                         }),
               InvalidArgument);
}

TEST(RequireEqualTest, DigestsTellThingsApart) {
  EXPECT_EQ(digest_of(std::span<const std::byte>()), kDigestSeed);
  EXPECT_EQ(digest_of(std::as_bytes(std::span("a", 1))), 0xaf63dc4c8601ec8cU);  // FNV-1a's own
  EXPECT_NE(digest_of("c", digest_of("ab")), digest_of("bc", digest_of("a")));
  EXPECT_NE(digest_of("ab"), digest_of("ba"));
  EXPECT_NE(named_value("x", "1").digest, named_value("x", "2").digest);
}

}  // namespace
}  // namespace trimtab
