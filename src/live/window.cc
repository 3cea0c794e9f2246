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

}  // namespace

std::vector<std::byte> pack_window(const LoadRecorder& recorder, int64_t steps,
                                   std::optional<Phase> phase, int64_t max_episodes) {
  if (steps < 0 || steps > recorder.recorded_steps()) {
    throw InvalidArgument(
        cat("a window of ", steps, " steps, ", recorder.recorded_steps(), " are recorded"));
  }
  const int layers = recorder.num_layers();
  const int slots = recorder.num_slots();
  std::vector<int64_t> chosen;  // how many steps before the latest
  for (int64_t age = steps; age > 0; --age) {
    if (!phase || recorder.phase(recorder.valid_steps(0) - age, 0) == *phase) chosen.push_back(age);
  }
  const EpisodeCut parts = EpisodeCut::spread(std::ssize(chosen), max_episodes);
  std::vector<std::byte> packed;
  put(packed, std::max<int64_t>(recorder.num_rows(), 0));
  put(packed, parts.count());
  std::vector<int64_t> sum(cells(slots));
  for (int64_t part = 0; part < parts.count(); ++part) {
    const StepRange of_part = parts[part];
    for (int layer = 0; layer < layers; ++layer) {
      std::ranges::fill(sum, 0);
      for (int64_t i = of_part.first; i < of_part.last; ++i) {
        const auto row = recorder.step(recorder.valid_steps(layer) - chosen[i], layer);
        for (int s = 0; s < slots; ++s) sum[s] += row[s];
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
  return packed;
}

Window unpack_windows(const Placement& placement, std::span<const std::vector<std::byte>> packed) {
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
  const int64_t parts = readers[0].next();
  for (size_t r = 1; r < readers.size(); ++r) {
    if (const int64_t other = readers[r].next(); other != parts) {
      throw InvalidArgument(
          cat("window of rank ", r, " has ", other, " parts, that of rank 0 ", parts));
    }
  }
  const int layers = placement.num_layers(), experts = placement.num_experts();
  // Every part takes at least a byte for each slot, so that a wrong number can't ask for much
  // memory.
  const int64_t most = std::ssize(std::ranges::max(packed, {}, &std::vector<std::byte>::size));
  if (parts > most) throw InvalidArgument(cat("windows of ", parts, " parts in ", most, " bytes"));
  window.load = {parts, layers, experts, {}};
  window.load.counts.resize(cells(parts, layers, experts));
  window.rank_loads = RankLoads(parts, layers, placement.num_ranks());
  for (int r = 0; r < placement.num_ranks(); ++r) {
    Reader& reader = readers[r];
    for (int64_t part = 0; part < parts; ++part) {
      for (int layer = 0; layer < layers; ++layer) {
        const auto logical = placement.logical(layer);
        int64_t* const loads = window.load.counts.data() + (part * layers + layer) * experts;
        int64_t rows = 0;
        for (int slot = placement.first_slot(r); slot < placement.first_slot(r + 1); ++slot) {
          const int64_t count = reader.next();
          loads[logical[slot]] += count;
          rows += count;
        }
        window.rank_loads.at(part, layer)[cells(r)] = static_cast<double>(rows);
      }
    }
    reader.end();
  }
  window.rank_loads.sum_up_window();
  return window;
}

}  // namespace trimtab
