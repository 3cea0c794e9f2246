// SPDX-License-Identifier: Apache-2.0
#include "live/window.h"

#include <algorithm>

#include "base/cat.h"
#include "load/episodes.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// value: at least 0.
void put(std::vector<std::byte>& out, int64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

// The counts of some steps, added up: [layers, slots].
void put_sums(const RecordedSteps& steps, std::span<const int64_t> some,
              std::vector<std::byte>& packed) {
  std::vector<int64_t> sum(cells(steps.num_slots()));
  for (int layer = 0; layer < steps.num_layers(); ++layer) {
    std::ranges::fill(sum, 0);
    for (const int64_t step : some) {
      const auto row = steps.step(step, layer);
      for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
    }
    for (size_t s = 0; s < sum.size(); ++s) {
      if (sum[s] < 0) {
        throw InvalidArgument(
            cat("window: slot ", s, " of layer ", layer, " has got ", sum[s], " rows"));
      }
      put(packed, sum[s]);
    }
  }
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, int rank) : bytes_(bytes), rank_(rank) {}

  int64_t next() {
    uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      if (at_ == bytes_.size()) break;
      const auto byte = static_cast<uint64_t>(bytes_[at_++]);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return static_cast<int64_t>(value);
    }
    throw InvalidArgument(cat("window of rank ", rank_, ": byte ", at_, " of ", bytes_.size(),
                              " is not within a count"));
  }
  void end() const {
    if (at_ != bytes_.size()) {
      throw InvalidArgument(
          cat("window of rank ", rank_, ": ", bytes_.size() - at_, " bytes too many"));
    }
  }

 private:
  std::span<const std::byte> bytes_;
  int rank_;
  size_t at_ = 0;
};

// What the rank's experts took in some steps, and what they would take by the cost.
RankTime time_of(const RecordedSteps& steps, std::span<const int64_t> some, const CostModel& cost) {
  RankTime time;
  for (const int64_t step : some) {
    time.measured += std::max<int64_t>(steps.expert_nanoseconds(step), 0);
    int64_t picoseconds = 0;
    for (int layer = 0; layer < steps.num_layers(); ++layer) {
      for (const int32_t rows : steps.step(step, layer)) picoseconds += cost.time(rows);
    }
    time.nominal += picoseconds / 1000;
  }
  return time;
}

// The number of parts that all ranks name. Every part takes at least a byte for each slot, so that
// a wrong number can't ask for much memory: `most` is the longest window's bytes.
int64_t same_count(std::span<Reader> readers, int64_t most) {
  const int64_t parts = readers[0].next();
  for (size_t r = 1; r < readers.size(); ++r) {
    if (const int64_t other = readers[r].next(); other != parts) {
      throw InvalidArgument(
          cat("window of rank ", r, " has ", other, " parts, that of rank 0 ", parts));
    }
  }
  if (parts > most) throw InvalidArgument(cat("windows of ", parts, " parts in ", most, " bytes"));
  return parts;
}

Load no_load(const Placement& placement, int64_t steps) {
  Load load{steps, placement.num_layers(), placement.num_experts(), {}};
  load.counts.resize(cells(steps, load.num_layers, load.num_experts));
  return load;
}

// Where the rows of ranks go, and what they took by the cost; each may be null.
struct OfRanks {
  RankLoads* rows = nullptr;
  RankLoads* times = nullptr;
  const CostModel* cost = nullptr;  // of the times
};

// Adds one rank's counts of all steps of the load.
void read_counts(const Placement& placement, int rank, Reader& reader, Load& load,
                 const OfRanks& of_ranks) {
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int layer = 0; layer < load.num_layers; ++layer) {
      const auto logical = placement.logical(layer);
      int64_t* const loads =
          load.counts.data() + (step * load.num_layers + layer) * load.num_experts;
      int64_t rows = 0, work = 0;
      for (int slot = placement.first_slot(rank); slot < placement.first_slot(rank + 1); ++slot) {
        const int64_t count = reader.next();
        loads[logical[slot]] += count;
        rows += count;
        if (of_ranks.times != nullptr) work += of_ranks.cost->time(count);
      }
      if (of_ranks.rows != nullptr)
        of_ranks.rows->at(step, layer)[cells(rank)] = static_cast<double>(rows);
      if (of_ranks.times != nullptr) {
        of_ranks.times->at(step, layer)[cells(rank)] =
            static_cast<double>(of_ranks.cost->time_on_rank(work, rank));
      }
    }
  }
}

}  // namespace

std::vector<std::byte> pack_window(const RecordedSteps& steps, std::optional<Phase> phase,
                                   int64_t max_episodes, const CostModel* cost) {
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < steps.size(); ++i) {
    if (!phase || steps.phase(i) == *phase) chosen.push_back(i);
  }
  const EpisodeCut parts = EpisodeCut::spread(std::ssize(chosen), max_episodes);
  std::vector<std::byte> packed;
  put(packed, std::max<int64_t>(steps.num_rows(), 0));
  put(packed, parts.count());
  for (int64_t part = 0; part < parts.count(); ++part)
    put_sums(steps, std::span(chosen).subspan(cells(parts[part].first), cells(parts[part].size())),
             packed);
  const bool has_single = cost != nullptr && parts.count() < std::ssize(chosen);
  put(packed, has_single ? parts.count() : 0);
  for (int64_t part = 0; has_single && part < parts.count(); ++part)
    put_sums(steps, std::span(chosen).subspan(cells(parts[part].last - 1), 1), packed);
  const RankTime time = cost != nullptr ? time_of(steps, chosen, *cost) : RankTime{};
  put(packed, time.nominal);
  put(packed, time.measured);
  return packed;
}

Window unpack_windows(const Placement& placement, std::span<const std::vector<std::byte>> packed,
                      const CostModel* cost) {
  if (std::ssize(packed) != placement.num_ranks()) {
    throw InvalidArgument(
        cat("windows of ", packed.size(), " ranks, the placement has ", placement.num_ranks()));
  }
  std::vector<Reader> readers;
  Window window;
  for (int r = 0; r < placement.num_ranks(); ++r) {
    if (packed[r].empty()) throw InvalidArgument(cat("rank ", r, " could not pack its window"));
    readers.emplace_back(packed[r], r);
    window.rank_rows.push_back(readers.back().next());
  }
  const int64_t most = std::ssize(std::ranges::max(packed, {}, &std::vector<std::byte>::size));
  const int64_t parts = same_count(readers, most);
  window.load = no_load(placement, parts);
  window.rank_loads = RankLoads(parts, placement.num_layers(), placement.num_ranks());
  // Those of the parts stay where these are single steps.
  if (cost != nullptr) window.rank_times = window.rank_loads;
  OfRanks of_ranks{&window.rank_loads, cost != nullptr ? &window.rank_times : nullptr, cost};
  for (int r = 0; r < placement.num_ranks(); ++r)
    read_counts(placement, r, readers[r], window.load, of_ranks);
  window.rank_loads.sum_up_window();
  const int64_t single = same_count(readers, most);
  window.single = no_load(placement, single);
  of_ranks.rows = nullptr;
  if (single > 0)
    window.rank_times = RankLoads(single, placement.num_layers(), placement.num_ranks());
  for (int r = 0; r < placement.num_ranks(); ++r) {
    read_counts(placement, r, readers[r], window.single, of_ranks);
    RankTime& time = window.times.emplace_back();
    time.nominal = readers[r].next();
    time.measured = readers[r].next();
    readers[r].end();
  }
  return window;
}

}  // namespace trimtab
