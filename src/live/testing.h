// SPDX-License-Identifier: Apache-2.0
// Random placements, and ranks with real experts in them, for the tests of this module.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "experts/test_grouped.h"
#include "trimtab/expert_slots.h"
#include "trimtab/migrator.h"

namespace trimtab::test {

// Every expert somewhere, all else by chance, repeats on one rank too.
inline Placement random_placement(int num_layers, int num_experts,
                                  const std::vector<int>& slots_per_rank, std::mt19937& random) {
  const auto num_slots =
      static_cast<size_t>(std::accumulate(slots_per_rank.begin(), slots_per_rank.end(), 0));
  std::vector<int32_t> logical;
  for (int l = 0; l < num_layers; ++l) {
    std::vector<int32_t> layer(num_slots);
    for (size_t s = 0; s < num_slots; ++s) {
      layer[s] = static_cast<int32_t>(
          s < static_cast<size_t>(num_experts) ? s : random() % static_cast<unsigned>(num_experts));
    }
    std::shuffle(layer.begin(), layer.end(), random);
    logical.insert(logical.end(), layer.begin(), layer.end());
  }
  return {num_layers, num_experts, slots_per_rank, logical};
}

inline std::unique_ptr<ExpertSlots> make_slots(const Placement& placement, const Table& experts,
                                               int spares, Communicator& comm) {
  const int first = placement.first_slot(comm.rank());
  const auto source = [&](int layer, int slot) {
    const int32_t logical = placement.logical(layer)[first + slot];
    return ExpertSlots::Expert{
        experts[static_cast<size_t>(layer * placement.num_experts() + logical)], logical};
  };
  return std::make_unique<ExpertSlots>(placement.num_layers(), placement.slots_of_rank(comm.rank()),
                                       spares, source, comm);
}

// One rank: its slots, and the placement that they should have. experts: [layers, experts].
struct MigratingRank {
  MigratingRank(const Placement& p, const Table& e, int spares, Communicator& c,
                const MigratorOptions& options = {})
      : MigratingRank(p, e, spares, c, c.duplicate(), options) {}
  MigratingRank(const Placement& p, const Table& e, int spares, Communicator& c,
                std::unique_ptr<Communicator> own, const MigratorOptions& options = {})
      : placement(p),
        experts(e),
        comm(c),
        slots(make_slots(p, e, spares, c)),
        migrator(*slots, p.first_slots(), std::move(own), options) {}

  StageResult stage(const Placement& to, int layer) {
    return migrator.stage(plan_moves(placement, to, layer));
  }
  // To another placement, all layers.
  void switch_to(const Placement& to) {
    for (int l = 0; l < placement.num_layers(); ++l) {
      const StageResult result = stage(to, l);
      ASSERT_TRUE(result.ok) << result.reason;
      if (migrator.staged_layer() >= 0) migrator.commit(l);
    }
    placement = to;
  }

  // Do the slots give the bits of the experts that should be there?
  void expect_right() const {
    const int first = placement.first_slot(comm.rank()),
              num_slots = placement.slots_of_rank(comm.rank());
    if (num_slots == 0) return;
    for (int l = 0; l < placement.num_layers(); ++l) {
      Table table;
      for (int s = 0; s < num_slots; ++s) {
        const int32_t logical = placement.logical(l)[first + s];
        ASSERT_EQ(slots->logical(l, s), logical);
        table.push_back(experts[static_cast<size_t>(l * placement.num_experts() + logical)]);
      }
      const std::vector<int32_t> counts(table.size(), 2);
      const TestRows x =
          random_rows(total(counts), table.front()->dtype(), table.front()->hidden());
      expect_same_as_mlps(table, x, counts, run(*slots->experts(l), x, counts, 1));
    }
  }

  Placement placement;
  const Table& experts;
  Communicator& comm;
  std::unique_ptr<ExpertSlots> slots;
  Migrator migrator;
};

}  // namespace trimtab::test
