// SPDX-License-Identifier: Apache-2.0
#include "cli/run/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/cores.h"
#include "trimtab/error.h"

#ifdef TRIMTAB_WITH_MPI
#include "trimtab/mpi_communicator.h"
#else
namespace trimtab {
class MpiSession {};
}  // namespace trimtab
#endif

namespace trimtab::cli {

namespace {

// The number that an environment variable holds; -1: none.
int number_in(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return -1;
  const std::string_view text(value);
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

// Has a launcher started this process as one of several? Each launcher tells its processes how many
// they are, or which one each is. A batch script of Slurm is one process, whatever its job may
// start, so only what srun sets counts.
bool is_one_of_several() {
  for (const char* const count : {"OMPI_COMM_WORLD_SIZE",  // Open MPI
                                  "PMI_SIZE",              // MPICH, Intel MPI
                                  "MV2_COMM_WORLD_SIZE",   // MVAPICH
                                  "SLURM_STEP_NUM_TASKS"}) {
    if (number_in(count) > 1) return true;
  }
  for (const char* const rank :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    if (number_in(rank) > 0) return true;
  }
  return number_in("SLURM_STEP_ID") >= 0 && number_in("SLURM_NTASKS") > 1;
}

#ifndef TRIMTAB_WITH_MPI
constexpr const char* kNoMpi =
    "a launcher (mpiexec, srun) has started several processes, but this trimtab is built without "
    "MPI, and each would be a whole run that writes the same files. Install MPI (Debian: "
    "openmpi-bin and libopenmpi-dev) and build with -DTRIMTAB_MPI=ON, or start one process, whose "
    "ranks are threads (--ranks N)";
#else
constexpr const char* kOtherMpi =
    "a launcher (mpiexec, srun) has started several processes, but the MPI that this trimtab is "
    "built with sees one of them alone: it is not the MPI of the launcher, or srun needs "
    "--mpi=pmix";
#endif

}  // namespace

Ranks::Ranks(int asked, int otherwise, const GroupOptions& options,
             [[maybe_unused]] bool progress_thread)
    : options_(options), count_(asked > 0 ? asked : otherwise) {
#ifndef TRIMTAB_WITH_MPI
  if (is_one_of_several()) throw Error(kNoMpi);
#else
  if (!MpiSession::launched()) {
    if (is_one_of_several()) throw Error(kOtherMpi);
    return;
  }
  session_ = std::make_unique<MpiSession>();
  int processes = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (processes == 1) {
    if (is_one_of_several()) throw Error(kOtherMpi);
    return;
  }
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

int Ranks::count_here() const {
  if (world_ == nullptr) return count_;
  const std::span<const int32_t> hosts = world_->hosts();
  return static_cast<int>(std::ranges::count(hosts, hosts[world_->rank()]));
}

int Ranks::hosts() const {
  return world_ == nullptr ? 1 : 1 + *std::ranges::max_element(world_->hosts());
}

int Ranks::threads_of_a_rank() const {
  const Cores cores = usable_cores();
  if (world_ == nullptr) return std::max(1, cores.count / count_);
  // mpiexec may have bound each process to cores of its own, or not.
  return std::max(1, std::min(cores.count, cores.of_machine / count_here()));
}

int Ranks::threads_here(int threads_of_a_rank) const {
  if (world_ != nullptr) return threads_of_a_rank;
  return std::max(threads_of_a_rank, std::min(count_ * threads_of_a_rank, usable_cores().count));
}

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
