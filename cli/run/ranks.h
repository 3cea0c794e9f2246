// SPDX-License-Identifier: Apache-2.0
// The ranks of a command: threads of this process, or, when mpiexec has started it as several, the
// processes.
#pragma once

#include <functional>
#include <memory>

#include "trimtab/communicator.h"

namespace trimtab {
class MpiSession;
}

namespace trimtab::cli {

class Ranks {
 public:
  // asked: as on the command line; 0: not said, then as many as mpiexec has started, or else
  // `otherwise` threads. Throws InvalidArgument when mpiexec has started another number, and Error
  // when a launcher has started several processes that this build can't bring together. Processes
  // are on the hosts on which they are, whatever the options say. progress_thread:
  // MpiOptions::progress_thread of processes.
  Ranks(int asked, int otherwise, const GroupOptions& options = {}, bool progress_thread = false);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int count() const { return count_; }
  bool are_processes() const { return world_ != nullptr; }
  // The ranks on this host.
  int count_here() const;
  // The number of hosts; 1 where ranks are threads.
  int hosts() const;
  // The threads that a rank should compute with where nobody says how many: the cores that this
  // process may use, shared out over its ranks, and no more than the rank's share of the host.
  int threads_of_a_rank() const;
  // The threads of this process where each of its ranks has so many, as far as it has cores for
  // them: those that load weights, which no rank does for itself.
  int threads_here(int threads_of_a_rank) const;
  // The rank of this process; 0 where ranks are threads.
  int self() const { return world_ != nullptr ? world_->rank() : 0; }

  // run_ranks(), or the body with this process's end. An exception fails the group and is thrown
  // here.
  void run(const std::function<void(Communicator&)>& body) const;

 private:
  GroupOptions options_;
  int count_;
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> world_;
};

}  // namespace trimtab::cli
