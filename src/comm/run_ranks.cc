// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cat.h"
#include "comm/failure_domain.h"
#include "comm/group_communicator.h"
#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The exceptions of all ranks, and which came first.
class Errors {
 public:
  explicit Errors(int ranks) : errors_(ranks) {}

  void add(int rank, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (first_ < 0) first_ = rank;
    errors_[rank] = std::move(error);
  }

  // After all ranks have ended. culprit: the rank that failed first, or -1; blamed: the one that it
  // blamed. A peer's consequential error may be caught before the error that caused it; and a rank
  // whose exception destroys an end on its way out has left that group before it is known to have
  // failed.
  void rethrow(int culprit, int blamed) const {
    if (first_ < 0) return;
    for (const int rank : {blamed, culprit}) {
      if (rank >= 0 && error_of(rank) && (rank == culprit || !is_comm_error(error_of(rank)))) {
        std::rethrow_exception(error_of(rank));
      }
    }
    std::rethrow_exception(error_of(first_));
  }

 private:
  const std::exception_ptr& error_of(int rank) const { return errors_[rank]; }
  static bool is_comm_error(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  std::mutex mutex_;  // guards all below
  std::vector<std::exception_ptr> errors_;
  int first_ = -1;
};

struct Launch {
  std::shared_ptr<FailureDomain> domain;
  std::vector<int> members;
  GroupState* state;
};

Launch make_launch(int ranks, const GroupOptions& options) {
  Launch launch{std::make_shared<FailureDomain>(ranks, options), std::vector<int>(ranks), nullptr};
  std::iota(launch.members.begin(), launch.members.end(), 0);
  launch.state = launch.domain->make_group(ranks);
  return launch;
}

void run_rank(const Launch& launch, int rank, const std::function<void(Communicator&)>& body,
              Errors& errors) {
  try {
    GroupCommunicator end(launch.domain, launch.members, rank, launch.state);
    try {
      body(end);
    } catch (const std::exception& error) {
      end.abort(error.what());
      throw;
    } catch (...) {
      end.abort("an exception of unknown type");
      throw;
    }
  } catch (...) {
    errors.add(rank, std::current_exception());
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const GroupOptions& options) {
  const Launch launch = make_launch(ranks, options);
  Errors errors(ranks);
  {
    std::vector<std::jthread> threads;
    threads.reserve(ranks);
    try {
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] { run_rank(launch, r, body, errors); });
    } catch (const std::system_error&
                 error) {  // no more threads: those that run must not wait for the others
      const auto missing = static_cast<int>(threads.size());
      const Error text(
          cat("can't start the thread of rank ", missing, " of ", ranks, ": ", error.what()));
      launch.domain->fail(missing, missing, text.what());
      throw text;
    }
  }
  const FailureDomain& domain = *launch.domain;
  errors.rethrow(domain.failed() ? domain.culprit() : -1, domain.failed() ? domain.blamed() : -1);
}

std::vector<std::unique_ptr<Communicator>> make_rank_group(int ranks, const GroupOptions& options) {
  const Launch launch = make_launch(ranks, options);
  std::vector<std::unique_ptr<Communicator>> ends;
  ends.reserve(ranks);
  for (int r = 0; r < ranks; ++r) {
    ends.push_back(
        std::make_unique<GroupCommunicator>(launch.domain, launch.members, r, launch.state));
  }
  return ends;
}

}  // namespace trimtab
