// SPDX-License-Identifier: Apache-2.0
#include "comm/testing.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "trimtab/error.h"

#ifdef TRIMTAB_WITH_MPI
#include "comm/testing_streams.h"
#include "trimtab/mpi_communicator.h"

namespace trimtab {
namespace {

// MPI for the run of the tests.
class MpiEnvironment final : public testing::Environment {
 public:
  void SetUp() override { session_ = std::make_unique<MpiSession>(); }
  void TearDown() override { session_ = nullptr; }

 private:
  std::unique_ptr<MpiSession> session_;
};
[[maybe_unused]] const testing::Environment* const kEnvironment =
    MpiSession::launched() ? testing::AddGlobalTestEnvironment(new MpiEnvironment) : nullptr;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// By the environment, which is there before MPI is.
int launched_ranks() {
  if (!MpiSession::launched()) return 0;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    if (const char* text = std::getenv(name); text != nullptr) return std::atoi(text);
  }
  return 1;
}

// What a rank has thrown.
struct Outcome {
  enum Kind : int { kNothing, kCommError, kOther, kInvalidArgument };
  Kind kind = kNothing;
  int peer = -1;
  std::array<char, 1000> text{};
};

Outcome outcome_of(const std::exception_ptr& error) {
  Outcome outcome;
  if (!error) return outcome;
  const auto set = [&outcome](Outcome::Kind kind, const char* text) {
    outcome.kind = kind;
    std::strncpy(outcome.text.data(), text, outcome.text.size() - 1);
  };
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& e) {
    set(Outcome::kInvalidArgument, e.what());
  } catch (const CommError& e) {
    set(Outcome::kCommError, e.what());
    outcome.peer = e.peer();
  } catch (const std::exception& e) {
    set(Outcome::kOther, e.what());
  } catch (...) {
    set(Outcome::kOther, "an exception of unknown type");
  }
  return outcome;
}

void throw_again(int rank, const Outcome& outcome, const std::exception_ptr& own) {
  if (rank == world_rank()) std::rethrow_exception(own);
  const std::string text(outcome.text.data());
  if (outcome.kind == Outcome::kInvalidArgument) throw InvalidArgument(text);
  if (outcome.kind == Outcome::kCommError) throw CommError(rank, outcome.peer, "run_group", text);
  throw Error(text);
}

// MPI has started the processes; over hosts they may still have streams instead of MPI's messages.
std::unique_ptr<Communicator> make_end(MPI_Comm members, int rank, const GroupOptions& options) {
  const char* text = std::getenv("TRIMTAB_STREAMS");
  if (text == nullptr || std::string_view(text) != "1") {
    return make_mpi_communicator(members,
                                 {.group = options, .progress_thread = has_progress_thread()});
  }
  const ProcessExchange exchange = [members](std::span<const std::byte> mine) {
    int size = 0;
    MPI_Comm_size(members, &size);
    const auto bytes = static_cast<int>(mine.size());
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(size));
    MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, members);
    return all;
  };
  return make_process_communicator(rank, exchange, options,
                                   std::make_shared<TcpStreams>(rank, exchange));
}

void run_processes(int ranks, const std::function<void(Communicator&)>& body,
                   const GroupOptions& options) {
  const int self = world_rank();
  MPI_Comm members = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, self < ranks ? 0 : MPI_UNDEFINED, self, &members);
  std::exception_ptr error;
  if (self < ranks) {
    try {
      const auto comm = make_end(members, self, options);
      try {
        body(*comm);
      } catch (const std::exception& e) {
        comm->abort(e.what());
        throw;
      } catch (...) {
        comm->abort("an exception of unknown type");
        throw;
      }
    } catch (...) {
      error = std::current_exception();
    }
    MPI_Comm_free(&members);
  }
  const Outcome mine = outcome_of(error);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<Outcome> all(size);
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
  const auto cause = std::ranges::max_element(all, {}, &Outcome::kind);
  if (cause->kind == Outcome::kNothing) return;
  if (mine.kind == cause->kind) std::rethrow_exception(error);
  throw_again(static_cast<int>(cause - all.begin()), *cause, error);
}

}  // namespace

bool ranks_are_processes() {
  return launched_ranks() > 0;
}

bool can_have_ranks(int ranks) {
  return !ranks_are_processes() || ranks <= launched_ranks();
}

void run_group(int ranks, const std::function<void(Communicator&)>& body,
               const GroupOptions& options) {
  if (!ranks_are_processes()) return run_ranks(ranks, body, options);
  run_processes(ranks, body, options);
}

void bring_together(std::span<float> all, std::span<const int64_t> begins) {
  if (!ranks_are_processes()) return;
  for (size_t r = 0; r + 1 < begins.size(); ++r) {
    MPI_Bcast(all.data() + begins[r], static_cast<int>(begins[r + 1] - begins[r]), MPI_FLOAT,
              static_cast<int>(r), MPI_COMM_WORLD);
  }
}

void bring_together(std::vector<std::vector<float>>& results) {
  if (!ranks_are_processes()) return;
  for (size_t r = 0; r < results.size(); ++r) {
    auto size = static_cast<int>(results[r].size());
    MPI_Bcast(&size, 1, MPI_INT, static_cast<int>(r), MPI_COMM_WORLD);
    results[r].resize(size);
    MPI_Bcast(results[r].data(), size, MPI_FLOAT, static_cast<int>(r), MPI_COMM_WORLD);
  }
}

}  // namespace trimtab

#else

namespace trimtab {

bool ranks_are_processes() {
  return false;
}
bool can_have_ranks(int) {
  return true;
}
void run_group(int ranks, const std::function<void(Communicator&)>& body,
               const GroupOptions& options) {
  run_ranks(ranks, body, options);
}
void bring_together(std::span<float>, std::span<const int64_t>) {}
void bring_together(std::vector<std::vector<float>>&) {}

}  // namespace trimtab

#endif

namespace trimtab {

std::vector<int> rank_counts(std::initializer_list<int> counts) {
  std::vector<int> possible;
  std::ranges::copy_if(counts, std::back_inserter(possible), can_have_ranks);
  return possible;
}

bool has_progress_thread() {
  const char* text = std::getenv("TRIMTAB_PROGRESS_THREAD");
  return ranks_are_processes() && text != nullptr && std::string_view(text) == "1";
}

}  // namespace trimtab
