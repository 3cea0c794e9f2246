// SPDX-License-Identifier: Apache-2.0
#include "cli/run/ranks.h"

#include <fmt/format.h>

#include "trimtab/error.h"

#ifdef TRIMTAB_WITH_MPI
#include "trimtab/mpi_communicator.h"
#else
namespace trimtab {
class MpiSession {};
}  // namespace trimtab
#endif

namespace trimtab::cli {

Ranks::Ranks(int asked, const GroupOptions& options, [[maybe_unused]] bool progress_thread)
    : options_(options), count_(asked > 0 ? asked : kDefaultThreads) {
#ifdef TRIMTAB_WITH_MPI
  if (!MpiSession::launched()) return;
  session_ = std::make_unique<MpiSession>();
  int processes = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (processes == 1) return;
  options_.hosts.clear();
  world_ = make_mpi_communicator(MPI_COMM_WORLD,
                                 {.group = options_, .progress_thread = progress_thread});
  count_ = processes;
  if (asked > 0 && asked != count_) {
    throw InvalidArgument(fmt::format(
        "--ranks {}, but mpiexec has started {} processes, a rank each", asked, count_));
  }
#endif
}

Ranks::~Ranks() = default;

void Ranks::run(const std::function<void(Communicator&)>& body) const {
  if (world_ == nullptr) return run_ranks(count_, body, options_);
  try {
    body(*world_);
  } catch (const std::exception& error) {
    world_->abort(error.what());
    throw;
  }
}

}  // namespace trimtab::cli
