// SPDX-License-Identifier: Apache-2.0
#include "trimtab/expert_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "experts/expert_block.h"
#include "experts/test_grouped.h"
#include "experts/test_quantised.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

using Finding = ExpertSlots::Finding;

// One rank's slots over [layers][slots] of a table; logical ids are indices into it.
std::unique_ptr<ExpertSlots> make_slots(const Table& table, int num_layers, int num_spares,
                                        Communicator& comm) {
  const int num_slots = static_cast<int>(table.size()) / num_layers;
  const auto source = [&](int layer, int slot) {
    const int index = layer * num_slots + slot;
    return ExpertSlots::Expert{table[index], index};
  };
  return std::make_unique<ExpertSlots>(num_layers, num_slots, num_spares, source, comm);
}

std::unique_ptr<ExpertSlots> make_slots(const Table& table, int num_layers, int num_spares) {
  std::unique_ptr<ExpertSlots> slots;
  run_ranks(1,
            [&](Communicator& comm) { slots = make_slots(table, num_layers, num_spares, comm); });
  return slots;
}

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  ASSERT_EQ(from.size(), to.size());
  std::memcpy(to.data(), from.data(), from.size());
}

void expect_to_run_as(const ExpertSlots& slots, int layer, const Table& table) {
  const std::vector<int32_t> counts(table.size(), 3);
  const TestRows x = random_rows(total(counts), table.front()->dtype(), table.front()->hidden());
  expect_same_as_mlps(table, x, counts, run(*slots.experts(layer), x, counts, 1));
}

// Biases, scales and zero points; all formats quantised here, and copied from checkpoints.
std::vector<std::pair<std::string, Table>> tables_of_all_formats(const GemmKernels* kernels) {
  std::vector<std::pair<std::string, Table>> tables;
  for (const WeightFormat format : kFormats)
    tables.emplace_back(name(format), make_table(3, format, kernels));
  for (const SameQuantization& same : kSameQuantizations) {
    if (!same.zeros) continue;
    Table table;
    for (uint32_t seed = 0; seed < 3; ++seed) {
      std::mt19937 random(seed);
      const Quantised gate = same.matrix(kIntermediate, kHidden, random);
      const Quantised up = same.matrix(kIntermediate, kHidden, random);
      const Quantised down = same.matrix(kHidden, kIntermediate, random);
      const MlpSource source = {gate.source, up.source, down.source, {}, {}, {}};
      table.push_back(std::make_shared<const Mlp>(source, Activation{}, same.format, kernels));
    }
    tables.emplace_back(same.text(), std::move(table));
  }
  return tables;
}

class ExpertSlotsTest : public EachIsa {};

TRIMTAB_FOR_EACH_ISA(ExpertSlotsTest);

TEST_P(ExpertSlotsTest, ExpertsKeepTheirBitsInSlotsAndOnTheirWay) {
  for (const auto& [text, table] : tables_of_all_formats(kernels())) {
    SCOPED_TRACE(text);
    const auto slots = make_slots(table, 1, 2);
    expect_to_run_as(*slots, 0, table);
    // 0 1 2 -> 2 2 0, the first 2 as a message.
    copy(slots->message(0, 2), slots->spare(1));
    const Finding finding = slots->check_spare(1, 0, 2);
    ASSERT_EQ(finding.fault, MessageFault::kNone) << finding.text;
    copy(slots->message(0, 0), slots->spare(0));
    const ExpertSlots::BlockChange changes[] = {
        {.slot = 0, .from_spare = 1}, {.slot = 1, .from_slot = 2}, {.slot = 2, .from_spare = 0}};
    slots->rearrange(0, changes);
    EXPECT_EQ(slots->logical(0, 0), 2);
    EXPECT_EQ(slots->logical(0, 1), 2);
    EXPECT_EQ(slots->logical(0, 2), 0);
    expect_to_run_as(*slots, 0, {table[2], table[2], table[0]});
  }
}

// An expert of a checkpoint in int4, with zero points or without.
std::shared_ptr<const Mlp> int4_expert(bool zeros, uint32_t seed, Scheme scheme) {
  std::mt19937 random(seed);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return Quantised(rows, cols, 1, 32, DType::kU4, DType::kF32, zeros, random);
  };
  const Quantised gate = matrix(64, 96), up = matrix(64, 96), down = matrix(96, 64);
  const MlpSource source = {gate.source, up.source, down.source, {}, {}, {}};
  return std::make_shared<const Mlp>(source, Activation{}, WeightFormat(scheme, 32));
}

TEST(ExpertSlots, ExpertsWithoutZeroPointsStandBesideSomeThatHaveThem) {
  for (const Scheme scheme : {Scheme::kW4A8, Scheme::kW4A16}) {
    const Table table = {int4_expert(true, 1, scheme), int4_expert(false, 2, scheme)};
    const size_t zero_bytes = scheme == Scheme::kW4A8 ? sizeof(int32_t) : 1;
    expect_to_run_as(*make_slots(table, 1, 0), 0, table);
    // Another rank has zero points.
    run_ranks(2, [&](Communicator& comm) {
      const Table own = {table[comm.rank() == 0 ? 1 : 0]};
      const auto slots = make_slots(own, 1, 0, comm);
      EXPECT_GT(slots->expert_bytes(), own[0]->bytes() + (comm.rank() == 0 ? 96 * zero_bytes : 0));
      expect_to_run_as(*slots, 0, own);
    });
    EXPECT_THROW(make_slots({table[1], table[0]}, 1, 0), InvalidArgument);
  }
}

TEST(ExpertSlots, StaticScalesOfRowsMoveWithTheirExperts) {
  std::mt19937 random(9);
  const TestMlp weights(kHidden, kIntermediate, DType::kBF16, Form::kDense, false, random);
  const auto expert = [&](float scale) {
    MlpSource source = weights.source();
    source.a1_scale = source.a2_scale = scale;
    return std::make_shared<const Mlp>(source, Activation{}, WeightFormat(Scheme::kW8A8));
  };
  const Table table = {expert(0.02F), expert(0.04F)};
  const auto slots = make_slots(table, 1, 1);
  expect_to_run_as(*slots, 0, table);
  copy(slots->message(0, 0), slots->spare(0));
  ASSERT_EQ(slots->check_spare(0, 0, 0).fault, MessageFault::kNone);
  const ExpertSlots::BlockChange change = {.slot = 1, .from_spare = 0};
  slots->rearrange(0, std::span(&change, 1));
  expect_to_run_as(*slots, 0, {table[0], table[0]});
  EXPECT_THROW(make_slots({table[0], expert(0)}, 1, 0), InvalidArgument);
}

TEST(ExpertSlots, EveryFlippedBitIsFound) {
  const auto slots = make_slots(make_table(1, Scheme::kW8A8, nullptr), 1, 1);
  const auto spare = slots->spare(0);
  copy(slots->message(0, 0), spare);
  std::mt19937 random(1);
  for (size_t byte = 0; byte < spare.size(); byte += byte < 200 ? 1 : 1 + random() % 40) {
    const auto mask = static_cast<std::byte>(1U << random() % 8);
    spare[byte] ^= mask;
    ASSERT_EQ(slots->check_spare(0, 0, 0).fault, MessageFault::kDamaged) << byte;
    spare[byte] ^= mask;
  }
  EXPECT_EQ(slots->check_spare(0, 0, 0).fault, MessageFault::kNone);
}

// A message of a rank that works with another kind of experts.
TEST(ExpertSlots, AnotherKindOfExpertIsRefused) {
  const auto mlp = [](WeightFormat format, const GemmKernels* kernels, int64_t hidden,
                      ActivationKind activation, bool biases) {
    std::mt19937 random(3);
    const TestMlp source(hidden, kIntermediate, DType::kBF16, Form::kDense, biases, random);
    return Mlp(source.source(), {.kind = activation}, format, kernels);
  };
  const ActivationKind silu = ActivationKind::kSilu;
  const Mlp right = mlp(Scheme::kBF16, &kScalarKernels, kHidden, silu, true);
  const ExpertBlock wanted(kind_of(right));
  const auto finding = [&](const Mlp& other, int layer = 4, int32_t logical = 5) {
    const ExpertBlock layout(kind_of(other));
    std::vector<std::byte> block(std::max(layout.bytes(), wanted.bytes()));
    layout.fill(std::span(block).first(layout.bytes()), other, 4, 5);
    return wanted.check(std::span(block).first(wanted.bytes()), layer, logical);
  };
  EXPECT_EQ(finding(right).fault, MessageFault::kNone);
  EXPECT_EQ(finding(right, 4, 6).fault, MessageFault::kExpert);
  EXPECT_EQ(finding(right, 3).text, "expert 5 of layer 4, not expert 5 of layer 3");
  const Finding format = finding(mlp(Scheme::kF16, &kScalarKernels, kHidden, silu, true));
  EXPECT_EQ(format.fault, MessageFault::kFormat);
  EXPECT_EQ(format.text, "f16, not bf16");
  EXPECT_EQ(finding(mlp(Scheme::kBF16, &kScalarKernels, kHidden, silu, false)).text,
            "of gate and up, down, not gate and up, gate and up biases, down, down biases");
  const Finding shape = finding(mlp(Scheme::kBF16, &kScalarKernels, 64, silu, true));
  EXPECT_EQ(shape.fault, MessageFault::kShape);
  EXPECT_EQ(shape.text, "64 -> 37, not 70 -> 37");
  const Finding activation =
      finding(mlp(Scheme::kBF16, &kScalarKernels, kHidden, ActivationKind::kGelu, true));
  EXPECT_EQ(activation.fault, MessageFault::kShape);
  EXPECT_EQ(activation.text, "gelu (1.702, 7, 1), not silu (1.702, 7, 1)");
  if (available_kernels().size() < 2) return;
  const GemmKernels* other = available_kernels().back();
  const Finding isa = finding(mlp(Scheme::kBF16, other, kHidden, silu, true));
  EXPECT_EQ(isa.fault, MessageFault::kInstructionSet);
  EXPECT_EQ(isa.text, std::string("packed for ") + other->isa + ", not scalar");
}

TEST(ExpertSlots, RanksThatDoNotFitAreRefusedEverywhere) {
  const auto build = [](int ranks, const std::function<Table(int rank)>& table) {
    std::vector<std::string> refused(ranks);
    run_ranks(ranks, [&](Communicator& comm) {
      try {
        make_slots(table(comm.rank()), 1, 1, comm);
      } catch (const InvalidArgument& error) {
        refused[comm.rank()] = error.what();
      }
    });
    const std::set<std::string> texts(refused.begin(), refused.end());
    return texts.size() == 1 ? *texts.begin() : "not the same everywhere";
  };
  const auto bf16 = [](int) { return make_table(2, Scheme::kBF16, nullptr); };
  EXPECT_EQ(build(3, bf16), "");
  EXPECT_EQ(build(3, [&](int rank) { return rank == 1 ? Table() : bf16(rank); }), "");
  EXPECT_EQ(build(2, [](int) { return Table(); }), "expert slots: no rank has any");
  EXPECT_EQ(build(3,
                  [&](int rank) {
                    return rank == 2 ? make_table(2, Scheme::kF32, nullptr) : bf16(rank);
                  }),
            "expert slots: the experts of rank 2 are f32, not bf16 as those of rank 0");
}

TEST(ExpertSlots, ARankWithoutSlotsHasEmptyExperts) {
  run_ranks(2, [](Communicator& comm) {
    const auto slots =
        make_slots(comm.rank() == 0 ? make_table(2, Scheme::kF32, nullptr) : Table(), 1, 3, comm);
    EXPECT_EQ(slots->num_spares(), comm.rank() == 0 ? 3 : 0);
    EXPECT_EQ(slots->staging_bytes(),
              static_cast<size_t>(slots->num_spares()) * slots->expert_bytes());
    EXPECT_EQ(slots->experts(0)->num_local(), comm.rank() == 0 ? 2 : 0);
    EXPECT_EQ(slots->experts(0)->hidden(), kHidden);
  });
}

// Against a list of ids, with changes of every kind.
TEST(ExpertSlots, RearrangeKeepsCountOfEveryBlock) {
  constexpr int kLayers = 2, kSlots = 4, kSpares = 2;
  const Table table = make_table(kLayers * kSlots, Scheme::kF32, nullptr);
  const auto slots = make_slots(table, kLayers, kSpares);
  std::vector<int32_t> ids(table.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const int layer = static_cast<int>(random() % kLayers);
    const std::span<int32_t> now =
        std::span(ids).subspan(static_cast<size_t>(layer * kSlots), kSlots);
    // Some slots change; up to two of them get a copy of any slot, the others trade blocks.
    std::vector<int> changing = {0, 1, 2, 3};
    std::shuffle(changing.begin(), changing.end(), random);
    changing.resize(random() % (kSlots + 1));
    std::vector<int> givers = changing;
    std::shuffle(givers.begin(), givers.end(), random);
    std::vector<ExpertSlots::BlockChange> changes;
    const std::vector<int32_t> before(now.begin(), now.end());
    int spare = 0;
    for (size_t c = 0; c < changing.size(); ++c) {
      const int slot = changing[c];
      if (spare < kSpares && random() % 2 == 0) {
        const auto from = static_cast<int>(random() % kSlots);
        copy(slots->message(layer, from), slots->spare(spare));
        changes.push_back({.slot = slot, .from_spare = spare++});
        now[slot] = before[from];
      } else {
        changes.push_back({.slot = slot, .from_slot = givers[c]});
        now[slot] = before[givers[c]];
      }
    }
    slots->rearrange(layer, changes);
    std::set<const std::byte*> blocks;
    for (int s = 0; s < kSpares; ++s) blocks.insert(slots->spare(s).data());
    for (int l = 0; l < kLayers; ++l) {
      for (int s = 0; s < kSlots; ++s) {
        blocks.insert(slots->message(l, s).data());
        ASSERT_EQ(slots->logical(l, s), ids[static_cast<size_t>(l * kSlots + s)])
            << "round " << round;
      }
    }
    ASSERT_EQ(blocks.size(), kLayers * kSlots + kSpares);
  }
  for (int l = 0; l < kLayers; ++l) {
    Table now;
    for (int s = 0; s < kSlots; ++s)
      now.push_back(table[static_cast<size_t>(ids[static_cast<size_t>(l * kSlots + s)])]);
    expect_to_run_as(*slots, l, now);
  }
}

TEST(ExpertSlots, ImpossibleChangesChangeNothing) {
  const auto slots = make_slots(make_table(3, Scheme::kF32, nullptr), 1, 2);
  const auto refuses = [&](std::vector<ExpertSlots::BlockChange> changes) {
    EXPECT_THROW(slots->rearrange(0, changes), InvalidArgument);
    for (int s = 0; s < 3; ++s) EXPECT_EQ(slots->logical(0, s), s);
  };
  refuses({{.slot = 0, .from_slot = 1}});
  refuses({{.slot = 0}});
  refuses({{.slot = 0, .from_slot = 0, .from_spare = 0}});
  refuses({{.slot = 0, .from_spare = 0}, {.slot = 0, .from_spare = 1}});
  refuses({{.slot = 0, .from_spare = 0}, {.slot = 1, .from_spare = 0}});
  refuses({{.slot = 0, .from_slot = 1}, {.slot = 1, .from_slot = 1}});
  refuses({{.slot = 3, .from_spare = 0}});
  refuses({{.slot = 0, .from_spare = 2}});
  EXPECT_THROW(slots->rearrange(1, {}), InvalidArgument);
}

TEST(ExpertSlots, TellsThatOldExpertsAreStillThere) {
  const auto slots = make_slots(make_table(1, Scheme::kF32, nullptr), 1, 1);
  copy(slots->message(0, 0), slots->spare(0));
  auto old = slots->experts(0);
  EXPECT_FALSE(slots->in_use(0));
  const ExpertSlots::BlockChange change[] = {{.slot = 0, .from_spare = 0}};
  slots->rearrange(0, change);
  EXPECT_TRUE(slots->in_use(0));
  old = nullptr;
  EXPECT_FALSE(slots->in_use(0));
}

}  // namespace
}  // namespace trimtab::test
