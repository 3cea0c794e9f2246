// SPDX-License-Identifier: Apache-2.0
// The loads that vLLM-Ascend hands to its policies, saved as .npy: the tokens of each slot,
// [layers, ranks, slots of a rank], or, of several stages of a window, [stages, layers, ranks,
// slots].
#include "base/cat.h"
#include "recordings/checked_recording.h"
#include "recordings/npy_numbers.h"
#include "recordings/readers.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

void check_fits(const Content& content, const NpyNumbers& loads, const Placement& placement) {
  const int64_t* sizes = loads.shape.data() + (loads.shape.size() - 3);
  bool fits = sizes[0] == placement.num_layers() && sizes[1] == placement.num_ranks();
  for (int rank = 0; rank < placement.num_ranks(); ++rank)
    fits &= placement.slots_of_rank(rank) == sizes[2];
  if (fits) return;
  throw FormatError(content.file(), 0,
                    cat("npy: loads of ", sizes[0], " layers x ", sizes[1], " ranks x ", sizes[2],
                        " slots; the placement has ", placement.num_layers(), " layers, ",
                        placement.num_slots(), " slots on ", placement.num_ranks(), " ranks"));
}

}  // namespace

Recording read_vllm_ascend_loads(const Content& content, const RecordingOptions& options) {
  const NpyNumbers loads =
      read_npy_numbers(content, "[layers, ranks, slots] or [stages, layers, ranks, slots]", 3, 4);
  if (options.recorded_under == nullptr) {
    throw InvalidArgument(
        cat(content.file(),
            ": vLLM-Ascend counts the tokens of slots; give the placement that was in use "
            "(--recorded-under)"));
  }
  const Placement& placement = *options.recorded_under;
  check_fits(content, loads, placement);
  const int64_t steps = loads.shape.size() == 4 ? loads.shape[0] : 1;
  const int64_t experts = placement.num_experts();
  check_dense(content.file(), steps, placement.num_layers(), experts, std::ssize(loads.values));
  std::vector<int64_t> counts(cells(steps, placement.num_layers(), experts));
  const Table of_slots(loads.values, placement.num_slots());
  const Table of_experts(counts, experts);
  for (int64_t row = 0; row < of_slots.rows(); ++row) {
    const auto held = placement.logical(static_cast<int>(row % placement.num_layers()));
    for (int slot = 0; slot < placement.num_slots(); ++slot) {
      int64_t& count = of_experts(row, held[cells(slot)]);
      if (__builtin_add_overflow(count, of_slots(row, slot), &count)) {
        throw FormatError(content.file(), -1,
                          cat("the counts of expert ", held[cells(slot)],
                              "'s slots sum to more than 63 bits hold"));
      }
    }
  }
  const int64_t shape[] = {steps, placement.num_layers(), experts};
  return dense_recording(content.file(), shape, std::move(counts), options);
}

}  // namespace trimtab
