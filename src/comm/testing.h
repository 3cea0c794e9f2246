// SPDX-License-Identifier: Apache-2.0
// Tests over ranks that are threads, or, when mpiexec has started the test, its processes: the same
// test body either way. Under MPI each process runs the whole test and is one rank in it; what a
// body writes, only its own process sees.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

// Has mpiexec started the test?
bool ranks_are_processes();
// Can there be so many ranks? Any number of threads, as many processes as there are.
bool can_have_ranks(int ranks);
// Those of the counts that can be.
std::vector<int> rank_counts(std::initializer_list<int> counts);
// Do processes have MpiOptions::progress_thread? With TRIMTAB_PROGRESS_THREAD=1, which
// tests/CMakeLists.txt sets for one.
bool has_progress_thread();

// run_ranks(), or the first `ranks` processes as ranks; the others wait. An exception of any rank
// is thrown on all, the cause before its consequences; of another process's only what() and whether
// it is InvalidArgument or CommError.
void run_group(int ranks, const std::function<void(Communicator&)>& body,
               const GroupOptions& options = {});

// After run_group(), on every process: brings what each rank has written to all. Rank r has written
// the elements [begins[r], begins[r + 1]), or results[r].
void bring_together(std::span<float> all, std::span<const int64_t> begins);
void bring_together(std::vector<std::vector<float>>& results);

}  // namespace trimtab

#define TRIMTAB_NEEDS_RANKS(ranks) \
  if (!trimtab::can_have_ranks(ranks)) GTEST_SKIP() << "needs " << (ranks) << " ranks"
