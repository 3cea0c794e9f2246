// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <thread>

#include "comm/mpi/mpi_calls.h"
#include "trimtab/mpi_communicator.h"

namespace trimtab {

bool MpiSession::launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

MpiSession::MpiSession() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return;
  int level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  owner_ = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

MpiSession::~MpiSession() {
  if (!owner_) return;
  const std::lock_guard lock(mpi::calls());
  MPI_Request all = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &all) != MPI_SUCCESS) return;
  int arrived = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (MPI_Test(&all, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && arrived == 0 &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (arrived != 0) MPI_Finalize();  // it would wait for a dead rank for ever
}

}  // namespace trimtab
