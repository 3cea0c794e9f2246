// SPDX-License-Identifier: Apache-2.0
#include "trimtab/migrator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "base/checksum.h"
#include "live/layer_work.h"
#include "trimtab/error.h"
#include "trimtab/workspace.h"

namespace trimtab {
namespace {

// What a rank says about a staging when the ranks agree.
struct Verdict {
  StageError error = StageError::kNone;
  uint64_t plan = 0;  // the checksum of the rank's moves
  std::array<char, 240> reason{};
};

StageError as_stage_error(MessageFault fault) {
  switch (fault) {
    case MessageFault::kNone:
      return StageError::kNone;
    case MessageFault::kDamaged:
      return StageError::kDamaged;
    case MessageFault::kFormat:
      return StageError::kFormat;
    case MessageFault::kShape:
      return StageError::kShape;
    case MessageFault::kInstructionSet:
      return StageError::kInstructionSet;
    case MessageFault::kExpert:
      return StageError::kExpert;
  }
  return StageError::kDamaged;
}

// The reason of a verdict, also if its end was damaged on the way.
std::string text_of(const Verdict& verdict) {
  return {verdict.reason.begin(), std::ranges::find(verdict.reason, '\0')};
}

}  // namespace

struct Migrator::State {
  State(ExpertSlots& slots, SlotRanges ranges, std::unique_ptr<Communicator> comm,
        const MigratorOptions& options);

  void begin(std::span<const Move> moves);
  bool agree(StageResult& result);
  void bring_experts(StageResult& result);
  void keep();
  ExpertSlots& slots() { return slots_; }
  // Returns when no peer reads what this rank has sent.
  void abort(const char* reason) noexcept { comm_->abort(reason); }

  std::vector<LayerWork> staged;  // in the order of their staging

 private:
  // A round that has started.
  struct Flight {
    Buffer shared;                    // memory that peers can read, which the next two view
    std::span<int64_t> send_bytes;    // [ranks]
    std::span<std::byte> message;     // empty if peers can read the slots themselves
    std::vector<int64_t> recv_bytes;  // [ranks]
    Pending pending;
    int receive = -1;  // as in LayerWork::Round
  };

  SlotRanges ranges() const { return SlotRanges(first_slots_); }
  std::vector<int> free_spares() const;
  void check_sources(std::span<const Move> moves) const;
  void start(const LayerWork::Round& round, Flight& flight, StageResult& result);
  void finish(Flight& flight, StageResult& result);
  void verify(int64_t move);
  void note(StageError error, const std::string& reason);
  std::string say(const Move& move, const std::string& what) const;

  ExpertSlots& slots_;
  const std::vector<int32_t> first_slots_;
  const MigratorOptions options_;
  std::vector<Flight> flights_;
  LayerWork work_;   // this rank's part in the staging
  Verdict verdict_;  // this rank's verdict on it
  std::vector<Verdict> verdicts_;
  std::vector<int64_t> verdict_bytes_;
  std::unique_ptr<Communicator> comm_;  // last: it is destroyed before what its operations read
};

Migrator::State::State(ExpertSlots& slots, SlotRanges slot_ranges,
                       std::unique_ptr<Communicator> comm, const MigratorOptions& options)
    : slots_(slots),
      first_slots_(slot_ranges.firsts().begin(), slot_ranges.firsts().end()),
      options_(options),
      verdicts_(comm->size()),
      verdict_bytes_(verdicts_.size()),
      comm_(std::move(comm)) {
  const int ranks = comm_->size(), rank = comm_->rank();
  if (ranges().num_ranks() != ranks) {
    throw InvalidArgument(
        cat("migrator: slots of ", ranges().num_ranks(), " ranks, there are ", ranks));
  }
  if (ranges().count(rank) != slots_.num_slots()) {
    throw InvalidArgument(cat("migrator: rank ", rank, " has ", slots_.num_slots(), " slots, not ",
                              ranges().count(rank)));
  }
  if (options_.max_in_flight < 1 || options_.max_in_flight > Communicator::kMaxInFlight) {
    throw InvalidArgument(cat("migrator: ", options_.max_in_flight, " messages in flight; at most ",
                              Communicator::kMaxInFlight));
  }
  // Threads read each other's slots where they are. Processes can read only what is copied to
  // memory that they share.
  const auto host = comm_->split(comm_->hosts()[rank], comm_->rank());
  const bool readable = slots_.num_slots() == 0 ||
                        host->board()->shares(slots_.message(0, 0).data(), slots_.expert_bytes());
  const size_t counts = Workspace::padded(verdicts_.size() * sizeof(int64_t)),
               message = readable ? 0 : slots_.expert_bytes();
  for (int f = 0; f < options_.max_in_flight; ++f) {
    Flight& flight = flights_.emplace_back();
    flight.shared = comm_->allocate(counts + message);
    flight.send_bytes = {flight.shared.as<int64_t>(), verdicts_.size()};
    flight.message = {flight.shared.data() + counts, message};
    flight.recv_bytes.resize(verdicts_.size());
  }
}

// Notes a problem of this rank. The first one is kept.
void Migrator::State::note(StageError error, const std::string& reason) {
  if (verdict_.error != StageError::kNone) return;
  verdict_.error = error;
  const std::string text = cat("rank ", comm_->rank(), ": ", reason);
  std::memcpy(verdict_.reason.data(), text.data(),
              std::min(text.size(), verdict_.reason.size() - 1));
}

// Works out this rank's part. agree() tells all ranks what is wrong with it.
void Migrator::State::begin(std::span<const Move> moves) {
  verdict_ = {.plan = checksum(std::as_bytes(moves))};
  work_ = {};
  try {
    work_ = layer_work(moves, ranges(), comm_->rank());
    check_sources(moves);
  } catch (const InvalidArgument& error) {
    note(StageError::kPlan, error.what());
  }
  const std::vector<int> free = free_spares();
  if (work_.spares > std::ssize(free)) {
    note(StageError::kSpares, cat(work_.spares, " experts to bring to layer ", work_.layer,
                                  ", there are ", free.size(), " spares"));
    return;
  }
  for (ExpertSlots::BlockChange& block : work_.blocks) {
    if (block.from_spare < 0) continue;
    block.from_spare = free[cells(block.from_spare)];
    if (slots_.in_use(block.from_spare))
      note(StageError::kSpares, "experts of an earlier placement are still in use");
  }
}

// The spares that no staged layer has, ascending.
std::vector<int> Migrator::State::free_spares() const {
  std::vector<bool> taken(cells(slots_.num_spares()));
  for (const LayerWork& work : staged) {
    for (const ExpertSlots::BlockChange& block : work.blocks) {
      if (block.from_spare >= 0) taken[cells(block.from_spare)] = true;
    }
  }
  std::vector<int> free;
  for (int spare = 0; spare < slots_.num_spares(); ++spare) {
    if (!taken[cells(spare)]) free.push_back(spare);
  }
  return free;
}

// Do this rank's slots hold the experts that they are to give?
void Migrator::State::check_sources(std::span<const Move> moves) const {
  const int32_t first = ranges().first(comm_->rank());
  for (const Move& move : moves) {
    const int32_t slot = move.from_slot - first;
    if (slot < 0 || slot >= slots_.num_slots()) continue;
    if (const int32_t held = slots_.logical(move.layer, slot); held != move.expert) {
      throw InvalidArgument(cat("slot ", move.from_slot, " of layer ", move.layer, " holds expert ",
                                held, ", not ", move.expert));
    }
  }
}

// Have all ranks found no fault, and were they given the same moves? The answer is the same on
// every rank.
bool Migrator::State::agree(StageResult& result) {
  Pending pending =
      comm_->all_gather_v(std::as_bytes(std::span(&verdict_, 1)),
                          std::as_writable_bytes(std::span(verdicts_)), verdict_bytes_);
  pending.wait();
  pending.wait_released();
  for (size_t r = 0; r < verdicts_.size() && result.ok; ++r) {
    const Verdict& verdict = verdicts_[r];
    result.ok = verdict.error == StageError::kNone && verdict.plan == verdicts_[0].plan;
    if (result.ok) continue;
    const bool other_plan = verdict.error == StageError::kNone;
    result.error = other_plan ? StageError::kPlan : verdict.error;
    result.reason =
        other_plan ? cat("rank ", r, " was given other moves than rank 0") : text_of(verdict);
  }
  return result.ok;
}

void Migrator::State::bring_experts(StageResult& result) {
  for (int64_t m = 0; m < std::ssize(work_.moves); ++m) {
    if (work_.how[m] != LayerWork::How::kCopy) continue;
    const int from = work_.moves[m].from_slot - ranges().first(comm_->rank());
    std::ranges::copy(slots_.message(work_.layer, from),
                      slots_.spare(work_.blocks[m].from_spare).begin());
    ++result.local_copies;
    verify(m);
  }
  for (size_t r = 0; r < work_.rounds.size(); ++r) {
    Flight& flight = flights_[r % flights_.size()];
    if (r >= flights_.size()) finish(flight, result);
    start(work_.rounds[r], flight, result);
  }
  const size_t started = std::min(work_.rounds.size(), flights_.size());
  for (size_t r = work_.rounds.size() - started; r < work_.rounds.size(); ++r) {
    finish(flights_[r % flights_.size()], result);
  }
}

// Every rank takes part in every round, with or without a message.
void Migrator::State::start(const LayerWork::Round& round, Flight& flight, StageResult& result) {
  std::ranges::fill(flight.send_bytes, 0);
  std::span<const std::byte> message;
  if (round.send_slot >= 0) {
    message = slots_.message(work_.layer, round.send_slot);
    if (!flight.message.empty()) {
      std::ranges::copy(message, flight.message.begin());
      message = flight.message;
    }
    flight.send_bytes[round.to] = std::ssize(message);
    ++result.messages_sent;
    result.bytes_sent += std::ssize(message);
  }
  flight.receive = round.receive;
  std::span<std::byte> spare;
  if (round.receive >= 0) spare = slots_.spare(work_.blocks[round.receive].from_spare);
  flight.pending = comm_->all_to_all_v(message, flight.send_bytes, spare, flight.recv_bytes);
}

// Waits until nobody reads what this rank has sent, since a slot may change once its layer is
// staged.
void Migrator::State::finish(Flight& flight, StageResult& result) {
  try {
    flight.pending.wait();
  } catch (const InvalidArgument& error) {  // the message is longer than this rank's are
    note(StageError::kDamaged, error.what());
  }
  if (flight.receive >= 0) {
    const Move& move = work_.moves[flight.receive];
    const int64_t bytes = flight.recv_bytes[ranges().rank_of(move.from_slot)];
    ++result.messages_received;
    result.bytes_received += bytes;
    if (std::cmp_not_equal(bytes, slots_.expert_bytes()))
      note(StageError::kDamaged, say(move, cat(bytes, " bytes came, not ", slots_.expert_bytes())));
    verify(flight.receive);
  }
  flight.pending.wait_released();
}

std::string Migrator::State::say(const Move& move, const std::string& what) const {
  return cat("expert ", move.expert, " for slot ", move.slot, " of layer ", move.layer,
             ", from slot ", move.from_slot, " of rank ", ranges().rank_of(move.from_slot), ": ",
             what);
}

// Is the expert of this move, by its index in the work, in its spare as it should be?
void Migrator::State::verify(int64_t index) {
  const Move& move = work_.moves[index];
  const int spare = work_.blocks[index].from_spare;
  try {
    if (options_.received) options_.received(move, slots_.spare(spare));
  } catch (const std::exception& error) {
    return note(StageError::kHook, say(move, error.what()));
  }
  const auto finding = slots_.check_spare(spare, move.layer, move.expert);
  if (finding.fault != MessageFault::kNone)
    note(as_stage_error(finding.fault), say(move, finding.text));
}

void Migrator::State::keep() {
  if (work_.layer >= 0) staged.push_back(std::move(work_));
}

Migrator::Migrator(ExpertSlots& slots, std::span<const int32_t> first_slots,
                   std::unique_ptr<Communicator> comm, const MigratorOptions& options)
    : state_(std::make_unique<State>(slots, first_slots, std::move(comm), options)) {}

Migrator::~Migrator() = default;

StageResult Migrator::stage(std::span<const Move> moves) {
  if (!moves.empty() && is_staged(moves.front().layer))
    throw InvalidArgument(cat("migrator: layer ", moves.front().layer, " is staged already"));
  const auto start = std::chrono::steady_clock::now();
  StageResult result;
  try {
    state_->begin(moves);
    if (state_->agree(result)) {
      state_->bring_experts(result);
      if (state_->agree(result)) state_->keep();
    }
  } catch (const std::exception& error) {
    state_->abort(error.what());  // before memory goes that peers may be reading
    throw;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

int Migrator::staged_layer() const {
  return state_->staged.empty() ? -1 : state_->staged.front().layer;
}

bool Migrator::is_staged(int layer) const {
  return std::ranges::find(state_->staged, layer, &LayerWork::layer) != state_->staged.end();
}

void Migrator::commit(int layer) {
  const auto work = std::ranges::find(state_->staged, layer, &LayerWork::layer);
  if (work == state_->staged.end()) {
    throw InvalidArgument(cat("migrator: layer ", layer, " to commit, staged is ", staged_layer()));
  }
  state_->slots().rearrange(layer, work->blocks);
  state_->staged.erase(work);
}

void Migrator::rollback() {
  state_->staged.clear();
}

void Migrator::rollback(int layer) {
  std::erase_if(state_->staged, [&](const LayerWork& work) { return work.layer == layer; });
}

}  // namespace trimtab
