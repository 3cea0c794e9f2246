// SPDX-License-Identifier: Apache-2.0
#include "runtime_balancer.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/cat.h"
#include "trimtab/communicator.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

Placement start_placement(const MoeRuntime& runtime, int redundant) {
  if (redundant < 0) throw InvalidArgument(cat("redundant must be 0 or more, is ", redundant));
  const int ranks = runtime.options().ranks;
  // Ranks have equally many slots: where ranks do not divide experts, more of them are redundant.
  const int slots = (runtime.num_experts() + ranks - 1) / ranks + redundant;
  return default_placement(runtime.num_layers(), runtime.num_experts(),
                           std::vector<int>(ranks, slots));
}

}  // namespace

RuntimeBalancer::RuntimeBalancer(std::shared_ptr<MoeRuntime> runtime, const BalancerConfig& config,
                                 int redundant)
    : runtime_(std::move(runtime)), process_(getpid()) {
  if (config.split != runtime_->split()) {
    throw InvalidArgument(cat("balancer: split is ", name(config.split), ", the runtime's is ",
                              name(runtime_->split())));
  }
  check_balancer_config(config);
  const Placement placement = start_placement(*runtime_, redundant);
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    runtime_->place(layer, placement.logical(layer));
    seen_.push_back(runtime_->slot_rows(layer));
  }
  make_balancers(config, placement);
}

RuntimeBalancer::~RuntimeBalancer() {
  if (getpid() == process_) return;
  // The child of a fork has no such threads to join.
  for (auto& balancer : balancers_) static_cast<void>(balancer.release());
  for (auto& end : ends_) static_cast<void>(end.release());
}

// For what the ranks do together: each on a thread of its own.
template <class Body>
void RuntimeBalancer::on_all_ranks(const Body& body) const {
  std::vector<std::exception_ptr> errors(ends_.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < std::ssize(ends_); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void RuntimeBalancer::make_balancers(const BalancerConfig& config, const Placement& placement) {
  ends_ = make_rank_group(runtime_->options().ranks, {.timeout = runtime_->options().timeout});
  balancers_.resize(ends_.size());
  on_all_ranks([&](int rank) {
    Balancer::Parts parts = {.placement = placement,
                             .cost = runtime_->cost(),
                             .shares_weights = true,
                             .place = [](int, const auto&, const auto&) {}};
    if (rank == 0) {
      parts.place = [this](int layer, const auto&, const auto&) { changed_.push_back(layer); };
      parts.log = [this](const BalanceEvent& event) { events_.push_back(event); };
    }
    balancers_[rank] = std::make_unique<Balancer>(config, std::move(parts), *ends_[rank]);
  });
}

void RuntimeBalancer::check_process() const {
  if (getpid() == process_) return;
  throw Error(cat("this balancer's threads are in process ", process_, "; this is process ",
                  getpid(), ", forked from it: make the balancer after the fork"));
}

void RuntimeBalancer::step(Phase phase, bool counts) {
  check_process();
  const std::lock_guard lock(mutex_);
  end_step(counts);
  std::vector<uint64_t> statuses;
  for (const auto& balancer : balancers_) statuses.push_back(balancer->status());
  for (const auto& balancer : balancers_) balancer->before_step(phase, statuses);
  step_is_open_ = true;
  place_changed_layers();
}

// What slots have got in the step is what they have got more than before it.
void RuntimeBalancer::end_step(bool counts) {
  if (!std::exchange(step_is_open_, false)) return;
  const Placement& placement = balancers_.front()->placement();
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    std::vector<int64_t> rows = runtime_->slot_rows(layer);
    for (int rank = 0; rank < placement.num_ranks(); ++rank) {
      const auto counted = balancers_[rank]->recorder().counts(layer);
      for (size_t s = 0; s < counted.size(); ++s) {
        const size_t slot = placement.first_slot(rank) + s;
        // They begin anew with MoeRuntime::reset_load().
        const int64_t before = rows[slot] < seen_[layer][slot] ? 0 : seen_[layer][slot];
        counted[s] = static_cast<int32_t>(rows[slot] - before);
      }
    }
    seen_[layer] = std::move(rows);
  }
  for (const auto& balancer : balancers_) balancer->after_step(counts);
}

void RuntimeBalancer::place_changed_layers() {
  for (const int layer : std::exchange(changed_, {})) {
    runtime_->place(layer, balancers_.front()->placement().logical(layer));
    seen_[layer] = runtime_->slot_rows(layer);
  }
}

void RuntimeBalancer::finish(bool counts) {
  check_process();
  const std::lock_guard lock(mutex_);
  end_step(counts);
  on_all_ranks([&](int rank) { balancers_[rank]->finish(); });
  place_changed_layers();
}

Placement RuntimeBalancer::placement() const {
  const std::lock_guard lock(mutex_);
  return balancers_.front()->placement();
}

BalanceMetrics RuntimeBalancer::metrics() const {
  const std::lock_guard lock(mutex_);
  return balancers_.front()->metrics();
}

Balancer::Verdict RuntimeBalancer::verdict() const {
  const std::lock_guard lock(mutex_);
  return balancers_.front()->verdict();
}

std::vector<BalanceEvent> RuntimeBalancer::take_events() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

}  // namespace trimtab::python
