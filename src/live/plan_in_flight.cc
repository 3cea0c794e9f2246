// SPDX-License-Identifier: Apache-2.0
#include "live/plan_in_flight.h"

#include <cstring>
#include <utility>

#include "comm/rank_bytes.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// What rank 0 tells the others of its plan, before the moves.
struct PlanHeader {
  int64_t num_moves = 0;
  double predicted = 0;
};

std::vector<std::byte> message_of(const PlanResult& plan, std::span<const Move> moves) {
  const PlanHeader header = {std::ssize(moves), plan.predicted};
  const auto head = std::as_bytes(std::span(&header, 1)), body = std::as_bytes(moves);
  std::vector<std::byte> message(head.begin(), head.end());
  message.insert(message.end(), body.begin(), body.end());
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
  if (config.screen) return;
  migrator_.emplace(*parts.slots, parts.placement.first_slots(), comm.duplicate(), parts.migration);
}

Worker::Job PlanInFlight::gather(std::vector<std::byte> window) {
  return [this, window = std::move(window)] { windows_ = bytes_to_rank_0(*comm_, window); };
}

Worker::Job PlanInFlight::make(PlanTask task) {
  result_ = std::make_shared<PlanResult>();
  auto owned = std::make_shared<const PlanTask>(std::move(task));
  return [task = std::move(owned), result = result_] { *result = make_plan(*task); };
}

Worker::Job PlanInFlight::share(const Placement& current) {
  std::vector<std::byte> message;
  if (rank_ == 0) {
    const bool apply = result_->kind == PlanResult::Kind::kPlan && !config_.screen;
    message =
        message_of(*result_, apply ? moves_to(current, result_->logical) : std::vector<Move>());
  }
  return [this, message = std::move(message)] {
    shared_ = std::move(bytes_of_ranks(*comm_, message)[0]);
  };
}

bool PlanInFlight::begin_migration(const Placement& current) {
  PlanHeader header;
  std::memcpy(&header, shared_.data(), sizeof header);
  std::vector<Move> moves(header.num_moves);
  if (moves.empty()) return false;
  std::memcpy(moves.data(), shared_.data() + sizeof header, std::span(moves).size_bytes());
  before_ = current;
  target_ = with_moves(current, moves, current.version());
  totals_ = {.predicted = header.predicted};
  layers_.clear();
  for (int layer = current.num_layers() - 1; layer >= 0; --layer) {
    std::vector<Move> of_layer = plan_moves(current, *target_, layer, parts_.topology);
    if (!of_layer.empty()) layers_.push_back(std::move(of_layer));
  }
  return true;
}

Worker::Job PlanInFlight::stage(const Placement& current, int64_t step) {
  stage_result_ = {};
  return [this, &current, step] {
    const std::vector<Move>& moves = layers_.back();
    trace_moves(moves, current, step);
    stage_result_ = migrator_->stage(moves);
    if (!stage_result_.ok) return;
    staged_table_ = std::make_shared<const SplitTable>(*target_, moves.front().layer,
                                                       parts_.topology.node_of_rank);
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

PlanInFlight::StagedLayer PlanInFlight::take_layer(const Placement& current) {
  StagedLayer staged;
  staged.moves = std::move(layers_.back());
  layers_.pop_back();
  staged.layer = staged.moves.front().layer;
  staged.result = stage_result_;
  staged.table = std::exchange(staged_table_, nullptr);
  for (const Move& move : staged.moves) {
    const bool is_sent = current.rank_of_slot(move.slot) != current.rank_of_slot(move.from_slot);
    staged.bytes += is_sent ? static_cast<int64_t>(parts_.slots->expert_bytes()) : 0;
  }
  totals_.bytes += staged.bytes;
  totals_.seconds += stage_result_.seconds;
  return staged;
}

void PlanInFlight::commit(const StagedLayer& staged) {
  migrator_->commit(staged.layer);
  ++totals_.switched_layers;
  totals_.moves += std::ssize(staged.moves);
}

}  // namespace trimtab
