// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, started by mpiexec on one host or several. Only where Trimtab is built with
// TRIMTAB_MPI. MPI carries the start and the messages between hosts; inside a host ranks share
// memory, and no MPI call is made for what they exchange. Any implementation of MPI-3 does.
//
// How hosts are told apart: ranks that see the same /dev/shm of the same running kernel share a
// host. Containers with a /dev/shm of their own are hosts of their own.
//
// Failures. Every wait ends within the group's timeout. A peer on this host whose process dies is
// noticed within 0.1 s; a peer on another host within the timeout, or when it has told. The library
// never calls MPI_Abort and lets errors of MPI return; what mpiexec does when a process dies is
// mpiexec's own: most stop the others.
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include "trimtab/communicator.h"

namespace trimtab {

// MPI, from MPI_Init_thread to MPI_Finalize, for a program that has not initialised it itself; does
// nothing in one that has. One object, in main(), outliving all Communicators.
class MpiSession {
 public:
  // Has an mpiexec (Open MPI, MPICH and its kin, Slurm) started this process? MPI may not be
  // initialised yet.
  static bool launched();

  // Throws Error when MPI can't be initialised.
  MpiSession();
  // Waits for the other ranks for a few seconds at most; where one never comes MPI is left as it
  // is.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool owner_ = false;
};

struct MpiOptions {
  // The options are those for threads. `hosts` must be empty: it is found out.
  GroupOptions group = {};
  // The longest that a rank waits for the others to come to make_mpi_communicator().
  std::chrono::milliseconds start_timeout = std::chrono::seconds(60);
  // Between hosts, messages move on only while a rank is in a call of the library. With this a
  // thread of each rank moves them on while the others compute, every 50 us: worth its cost only
  // where cores are free. Needs MPI_THREAD_SERIALIZED.
  bool progress_thread = false;
};

// This rank's end of the group of all ranks of `ranks`. Collective over it; the MPI communicator is
// not used by anything after the call. MPI must stay initialised while the Communicator lives. MPI
// calls of several Communicators are made one at a time; with threads that call MPI themselves
// MPI_THREAD_MULTIPLE is needed. Throws CommError when not all ranks come within the timeout, Error
// when the ranks of a host can't share memory.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm ranks, const MpiOptions& options = {});

}  // namespace trimtab
