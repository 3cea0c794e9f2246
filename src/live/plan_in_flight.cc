// SPDX-License-Identifier: Apache-2.0
#include "live/plan_in_flight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/rank_bytes.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// What rank 0 tells the others of its plan, before the moves.
struct PlanHeader {
  int64_t num_moves = 0, num_speeds = 0;
  double predicted = 0;
};

std::vector<std::byte> message_of(const PlanResult& plan, std::span<const Move> moves,
                                  std::span<const int32_t> speeds) {
  const PlanHeader header = {std::ssize(moves), std::ssize(speeds), plan.predicted};
  std::vector<std::byte> message;
  for (const auto part :
       {std::as_bytes(std::span(&header, 1)), std::as_bytes(moves), std::as_bytes(speeds)})
    message.insert(message.end(), part.begin(), part.end());
  return message;
}

}  // namespace

Placement with_moves(const Placement& placement, std::span<const Move> moves, uint64_t version) {
  std::vector<int32_t> logical(placement.logical().begin(), placement.logical().end());
  const Table table(logical, placement.num_slots());
  for (const Move& move : moves) table(move.layer, move.slot) = move.expert;
  return placement.with(std::move(logical), version);
}

std::vector<Move> moves_to(const Placement& from, std::span<const int32_t> logical) {
  std::vector<Move> moves;
  const Table next(logical, from.num_slots());
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    const auto old = from.logical(layer);
    for (int slot = 0; slot < from.num_slots(); ++slot) {
      if (next(layer, slot) != old[slot]) moves.push_back({layer, slot, next(layer, slot)});
    }
  }
  return moves;
}

PlanInFlight::PlanInFlight(const BalancerConfig& config, const Balancer::Parts& parts,
                           Communicator& comm)
    : config_(config), parts_(parts), rank_(comm.rank()), comm_(comm.duplicate()) {
  if (config.screen || parts.shares_weights) return;
  migrator_.emplace(*parts.slots, parts.placement.first_slots(), comm.duplicate(), parts.migration);
  const int64_t mine = parts.slots->num_spares();
  std::vector<int64_t> bytes(cells(comm.size()));
  spares_.resize(bytes.size());
  comm_
      ->all_gather_v(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(spares_)),
                     bytes)
      .wait_released();
}

void PlanInFlight::gather(std::span<const std::byte> window) {
  windows_ = bytes_to_rank_0(*comm_, window);
}

Worker::Job PlanInFlight::make(PlanTask task) {
  result_ = std::make_shared<PlanResult>();
  auto owned = std::make_shared<const PlanTask>(std::move(task));
  return [task = std::move(owned), result = result_] { *result = make_plan(*task); };
}

Worker::Job PlanInFlight::share(const Placement& current, std::vector<int32_t> speeds) {
  return [this, &current, speeds = std::move(speeds)] {
    std::vector<std::byte> message;
    if (rank_ == 0) {
      const bool apply = result_->kind == PlanResult::Kind::kPlan && !config_.screen;
      message = message_of(
          *result_, apply ? moves_to(current, result_->logical) : std::vector<Move>(), speeds);
    }
    prepare(current, bytes_of_ranks(*comm_, message)[0]);
  };
}

// Reads what rank 0 has told.
void PlanInFlight::prepare(const Placement& current, std::span<const std::byte> message) {
  layers_.clear();
  PlanHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  std::vector<Move> moves(header.num_moves);
  speeds_.resize(cells(header.num_speeds));
  const std::span body = message.subspan(sizeof header);
  std::ranges::copy(body.first(std::span(moves).size_bytes()),
                    std::as_writable_bytes(std::span(moves)).begin());
  std::ranges::copy(body.subspan(std::span(moves).size_bytes()),
                    std::as_writable_bytes(std::span(speeds_)).begin());
  if (moves.empty()) return;
  before_ = current;
  target_ = with_moves(current, moves, current.version());
  totals_ = {.predicted = header.predicted};
  for (int layer = current.num_layers() - 1; layer >= 0; --layer) {
    NextLayer next = {.moves = plan_moves(current, *target_, layer, parts_.topology)};
    if (next.moves.empty()) continue;
    next.spares = spares_needed(next.moves, current.first_slots());
    for (const Move& move : next.moves) {
      const bool is_sent = current.rank_of_slot(move.slot) != current.rank_of_slot(move.from_slot);
      if (is_sent && parts_.slots) next.bytes += static_cast<int64_t>(parts_.slots->expert_bytes());
    }
    layers_.push_back(std::move(next));
  }
}

// How many of the next layers all ranks have spares for; the same on every rank.
int64_t PlanInFlight::layers_that_fit() const {
  std::vector<int64_t> left = spares_;
  int64_t count = 0;
  for (auto next = layers_.rbegin(); next != layers_.rend(); ++next, ++count) {
    if (count == config_.layers_in_flight) break;
    bool fits = true;
    for (size_t r = 0; r < left.size(); ++r) {
      left[r] -= next->spares[r];
      fits = fits && left[r] >= 0;
    }
    if (!fits) break;
  }
  return std::max<int64_t>(count, 1);
}

Worker::Job PlanInFlight::stage(const Placement& current, int64_t step) {
  staged_.clear();
  for (int64_t count = layers_that_fit(); count > 0; --count) {
    NextLayer& next = layers_.back();
    staged_.push_back({.layer = next.moves.front().layer,
                       .moves = std::move(next.moves),
                       .bytes = next.bytes,
                       .result = {.ok = false, .reason = "the staging ended early"},
                       .table = nullptr});
    layers_.pop_back();
  }
  return [this, &current, step] {
    std::vector<Move> moves;
    for (StagedLayer& next : staged_) {
      if (migrator_) {
        trace_moves(next.moves, current, step);
        next.result = migrator_->stage(next.moves);
      } else {
        next.result = {};
      }
      if (!next.result.ok) continue;
      moves.insert(moves.end(), next.moves.begin(), next.moves.end());
      next.table =
          std::make_shared<const SplitTable>(*target_, next.layer, parts_.topology.node_of_rank);
    }
    next_ = with_moves(current, moves, current.version() + 1);
  };
}

// An arrow for each message, from the rank that sends it to the one that gets it.
void PlanInFlight::trace_moves(std::span<const Move> moves, const Placement& current,
                               int64_t step) const {
  if (parts_.trace == nullptr) return;
  const int64_t time = TraceBuffer::now();
  for (const Move& move : moves) {
    const int from = current.rank_of_slot(move.from_slot), to = current.rank_of_slot(move.slot);
    if (from == to) continue;
    const int64_t id = (step * current.num_layers() + move.layer) * current.num_slots() + move.slot;
    if (from == rank_) parts_.trace->flow_start("expert", time, id);
    if (to == rank_) parts_.trace->flow_end("expert", time, id);
  }
}

std::vector<PlanInFlight::StagedLayer> PlanInFlight::take_staged() {
  for (const StagedLayer& staged : staged_) {
    totals_.bytes += staged.bytes;
    totals_.seconds += staged.result.seconds;
  }
  return std::move(staged_);
}

void PlanInFlight::commit(const StagedLayer& staged) {
  if (migrator_) migrator_->commit(staged.layer);
  ++totals_.switched_layers;
  totals_.moves += std::ssize(staged.moves);
}

void PlanInFlight::roll_back(const StagedLayer& staged) {
  if (migrator_) migrator_->rollback(staged.layer);
}

}  // namespace trimtab
