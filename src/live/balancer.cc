// SPDX-License-Identifier: Apache-2.0
// Every rank runs this state machine in step with the others. It changes its state in before_step()
// only, and only by what all ranks know alike: the words that they have told each other before the
// step, and how many steps there were. Work that takes time is a job of the rank's worker; a word
// says which job a rank is at and whether it is done, so the next one starts on all ranks at the
// same step. Jobs: gather (loads to rank 0), plan (rank 0 alone, no peer waits for it), share (rank
// 0's plan to all), and one stage for each layer.
#include "trimtab/balancer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/cat.h"
#include "comm/rank_bytes.h"
#include "live/planner.h"
#include "live/worker.h"
#include "load/predict.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Words: the number of the job, its status, and whether its deadline has passed.
constexpr uint64_t kLateBit = 0x80;
uint64_t make_word(uint64_t job, JobStatus status, bool late) {
  return job << 8 | static_cast<uint64_t>(status) | (late ? kLateBit : 0);
}
uint64_t job_of(uint64_t word) {
  return word >> 8;
}
JobStatus status_of(uint64_t word) {
  return static_cast<JobStatus>(word & 0x7f);
}
bool late(uint64_t word) {
  return (word & kLateBit) != 0;
}

// How long a planner may take to come back when the Balancer ends.
constexpr std::chrono::seconds kPatience(1);

// The buffer of the thread in the background, for as long as the Balancer lives: a planner may
// outlive it.
struct BackgroundTrace {
  std::mutex mutex;
  TraceBuffer* buffer = nullptr;

  void slice(const char* name, int64_t begin) {
    const std::lock_guard lock(mutex);
    if (buffer != nullptr) buffer->slice(name, begin);
  }
};

// A slot of a layer that gets another expert.
struct SlotChange {
  int32_t layer, slot, expert;
};

// What rank 0 tells the others of its plan, before the changes.
struct PlanHeader {
  int64_t num_changes = 0;
  double predicted = 0;
};

Placement with_changes(const Placement& placement, std::span<const SlotChange> changes,
                       uint64_t version) {
  std::vector<int32_t> logical(placement.logical().begin(), placement.logical().end());
  for (const SlotChange& change : changes) {
    logical.at(cells(change.layer, placement.num_slots()) + static_cast<size_t>(change.slot)) =
        change.expert;
  }
  return placement.with(std::move(logical), version);
}

std::vector<SlotChange> changes_between(const Placement& from, std::span<const int32_t> logical) {
  std::vector<SlotChange> changes;
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    const auto old = from.logical(layer);
    for (int slot = 0; slot < from.num_slots(); ++slot) {
      const auto s = static_cast<size_t>(slot);
      const int32_t expert = logical[static_cast<size_t>(layer) * old.size() + s];
      if (expert != old[s]) changes.push_back({layer, slot, expert});
    }
  }
  return changes;
}

}  // namespace

struct Balancer::State {
  enum class At { kCollecting, kGathering, kPlanning, kSharing, kStaging };

  State(const BalancerConfig& configuration, Parts given, Communicator& comm);
  ~State();

  void take_words(std::span<const uint64_t> words);
  void collect();
  void gathered();
  void planned(std::span<const uint64_t> words);
  void shared();
  void staged(bool failed);
  void switch_layer(bool failed);
  void job_failed();
  void wait_for_job() const;

  // name: of the job, in traces.
  void start(const char* name, Worker::Job job);
  void trace_transfers(int64_t time) const;
  void start_gathering();
  void start_planning();
  void start_sharing();
  void start_staging();
  void end_window();
  void finish_plan();
  void measure(const Window& window);
  void screen(const Window& window);
  void add(BalanceEvent event);
  int64_t ring_steps() const;
  bool is_planner() const { return rank == 0; }

  const BalancerConfig config;
  const Parts parts;
  const int rank, ranks;
  std::shared_ptr<const Policy> policy;
  Placement placement;
  LoadRecorder recorder;

  std::unique_ptr<Communicator> word_group, job_group;
  std::vector<uint64_t> words;
  uint64_t my_word = 0;
  std::vector<int64_t> word_bytes;
  Pending pending_words;
  bool tells_itself = false, words_sent = false;

  At at = At::kCollecting;
  uint64_t job = 0;  // the number of the last one
  int64_t step = 0;
  int64_t recorded_in_window = 0,
          wanted_in_window = 0;  // steps: kept, and of them those of the phase
  Phase phase = Phase::kDecode;
  Clock::time_point step_began;
  double step_seconds = 0;  // of the window
  Clock::time_point plan_began;
  int64_t plan_began_step = 0, next_stage_step = 0;

  // What jobs make, read when they are done.
  std::vector<std::vector<std::byte>> packed;
  std::shared_ptr<PlanResult> plan;
  std::vector<std::byte> shared_plan;
  StageResult stage_result;
  bool staging = false;
  std::shared_ptr<const SplitTable> staged_table;

  // The plan that is being carried out.
  std::optional<Placement> target;
  double predicted = 0;
  std::vector<std::vector<Transfer>> layers;  // still to switch, the next one last
  int64_t switched_in_plan = 0, moves_in_plan = 0, bytes_in_plan = 0;
  double move_seconds = 0;

  History history;
  Costs costs;
  // What the last plan, applied or screened, is measured against.
  std::optional<Placement> before, proposed;
  std::vector<double> screened_gains;

  BalanceMetrics metrics;
  std::vector<BalanceEvent> events;
  int64_t layers_switched = 0;

  const std::shared_ptr<BackgroundTrace> background_trace = std::make_shared<BackgroundTrace>();
  std::optional<Migrator> migrator;
  Worker worker;  // last: its job is through before the rest goes
};

int64_t Balancer::State::ring_steps() const {
  // Steps of the other phase stand between those that are wanted.
  return config.phase ? 2 * config.interval : config.interval;
}

namespace {

// Before a peer hears of it.
const BalancerConfig& checked(const BalancerConfig& config, const Balancer::Parts& parts,
                              const Communicator& comm) {
  check_balancer_config(config);
  const auto check = [](bool fits, const auto&... what) {
    if (!fits) throw InvalidArgument(cat("balancer: ", what...));
  };
  const Placement& placement = parts.placement;
  check(placement.num_ranks() == comm.size(), "the placement is for ", placement.num_ranks(),
        " ranks, there are ", comm.size());
  check(
      parts.topology.node_of_rank.empty() || std::ssize(parts.topology.node_of_rank) == comm.size(),
      "the topology is of ", parts.topology.node_of_rank.size(), " ranks, there are ", comm.size());
  if (config.screen) return config;
  check(parts.slots != nullptr && parts.place != nullptr,
        "to move experts it needs their slots, and whom to tell");
  check(parts.slots->num_layers() == placement.num_layers() &&
            parts.slots->num_slots() == placement.slots_of_rank(comm.rank()),
        "rank ", comm.rank(), " has ", parts.slots->num_layers(), " layers of ",
        parts.slots->num_slots(), " slots, the placement ", placement.num_layers(), " of ",
        placement.slots_of_rank(comm.rank()));
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    for (int s = 0; s < parts.slots->num_slots(); ++s) {
      const int slot = placement.first_slot(comm.rank()) + s;
      check(parts.slots->logical(layer, s) == placement.logical(layer)[slot], "slot ", slot,
            " of layer ", layer, " holds expert ", parts.slots->logical(layer, s),
            ", the placement says ", placement.logical(layer)[slot]);
    }
  }
  return config;
}

}  // namespace

Balancer::State::State(const BalancerConfig& configuration, Parts given, Communicator& comm)
    : config(checked(configuration, given, comm)),
      parts(std::move(given)),
      rank(comm.rank()),
      ranks(comm.size()),
      policy(parts.policy ? parts.policy : make_policy(config.policy, config.policy_options)),
      placement(parts.placement),
      recorder(placement.num_layers(), placement.slots_of_rank(rank), ring_steps()),
      word_group(comm.duplicate()),
      job_group(comm.duplicate()),
      words(ranks),
      word_bytes(ranks) {
  if (!config.screen) {
    migrator.emplace(*parts.slots, placement.first_slots(), comm.duplicate(), parts.migration);
  }
  background_trace->buffer = parts.trace;
  for (int layer = 0; layer < placement.num_layers(); ++layer)
    recorder.begin_epoch(layer, placement.version());
  metrics.rank_tokens.resize(ranks);
  events.reserve(1024);
}

Balancer::State::~State() {
  const std::lock_guard lock(background_trace->mutex);
  background_trace->buffer = nullptr;
}

Balancer::Balancer(const BalancerConfig& config, Parts parts, Communicator& comm)
    : state_(std::make_unique<State>(config, std::move(parts), comm)) {}

Balancer::~Balancer() {
  State& s = *state_;
  // A job that peers take part in ends with them; only a planner may not.
  const bool alone = s.at == State::At::kPlanning || s.at == State::At::kCollecting;
  if (s.is_planner() && alone) s.worker.set_patience(kPatience);
  if (!s.words_sent) return;
  try {
    s.pending_words.wait();
    s.pending_words.wait_released();
  } catch (const Error& error) {
    // The group has failed, and whoever uses it next is told; peers may still be reading the word.
    s.word_group->abort(error.what());
  }
}

void Balancer::State::wait_for_job() const {
  if (at == At::kCollecting) return;  // what runs then is a planner that was late
  if (at != At::kPlanning || config.plan_deadline_seconds == 0) return worker.wait();
  constexpr double kLongest = 1e9;  // a clock ends some day
  const std::chrono::duration<double> patience(std::min(config.plan_deadline_seconds, kLongest));
  worker.wait(plan_began + std::chrono::ceil<Clock::duration>(patience));
}

uint64_t Balancer::word() {
  State& s = *state_;
  if (!s.config.use_async) {
    const Clock::time_point begin = Clock::now();
    s.wait_for_job();
    s.metrics.stall_seconds += seconds_between(begin, Clock::now());
  }
  const JobStatus status = s.worker.status();
  // Ranks that have no part in planning are done with it at once.
  if (s.at == State::At::kPlanning && !s.is_planner())
    return make_word(s.job, JobStatus::kDone, false);
  const bool is_late =
      s.at == State::At::kPlanning && status == JobStatus::kRunning &&
      s.config.plan_deadline_seconds > 0 &&
      seconds_between(s.plan_began, Clock::now()) >= s.config.plan_deadline_seconds;
  return make_word(s.job, status, is_late);
}

void Balancer::before_step(Phase phase) {
  State& s = *state_;
  s.tells_itself = true;
  if (s.words_sent) {
    s.pending_words.wait();
    s.pending_words.wait_released();
    s.words_sent = false;
  }
  before_step(phase, s.words);
}

void Balancer::before_step(Phase phase, std::span<const uint64_t> words) {
  State& s = *state_;
  if (std::ssize(words) != s.ranks) {
    throw InvalidArgument(cat("balancer: words of ", words.size(), " ranks, there are ", s.ranks));
  }
  const Clock::time_point begin = Clock::now();
  if (s.worker.status() == JobStatus::kBroken) s.worker.rethrow();
  s.take_words(words);
  s.phase = phase;
  s.recorder.begin_step(phase);
  s.step_began = Clock::now();
  s.metrics.stall_seconds += seconds_between(begin, s.step_began);
}

void Balancer::after_step(bool counts) {
  State& s = *state_;
  if (counts && s.step >= s.config.warmup_steps) {
    s.recorder.keep_step();
    ++s.recorded_in_window;
    if (!s.config.phase || *s.config.phase == s.phase) ++s.wanted_in_window;
    s.step_seconds += seconds_between(s.step_began, Clock::now());
  } else {
    s.recorder.skip_step();
  }
  ++s.step;
  if (!s.tells_itself) return;
  // They arrive under whatever stands between two steps.
  s.my_word = word();
  s.pending_words =
      s.word_group->all_gather_v(std::as_bytes(std::span(&s.my_word, 1)),
                                 std::as_writable_bytes(std::span(s.words)), s.word_bytes);
  s.words_sent = true;
}

void Balancer::State::take_words(std::span<const uint64_t> all) {
  const bool all_through = std::ranges::all_of(all, [&](uint64_t word) {
    return job_of(word) == job && status_of(word) != JobStatus::kRunning;
  });
  const bool failed =
      std::ranges::any_of(all, [](uint64_t word) { return status_of(word) == JobStatus::kFailed; });
  if (at == At::kPlanning) {
    planned(all);
  } else if (all_through && failed && (at == At::kGathering || at == At::kSharing)) {
    job_failed();
  } else if (all_through) {
    switch (at) {
      case At::kCollecting:
        return collect();
      case At::kGathering:
        return gathered();
      case At::kSharing:
        return shared();
      case At::kStaging:
        return staged(failed);
      case At::kPlanning:
        return;
    }
  }
}

void Balancer::State::start(const char* name, Worker::Job work) {
  ++job;
  if (parts.trace == nullptr) return worker.start(std::move(work));
  worker.start([name, work = std::move(work), trace = background_trace] {
    const int64_t begin = TraceBuffer::now();
    work();
    trace->slice(name, begin);
  });
}

void Balancer::State::end_window() {
  at = At::kCollecting;
  recorded_in_window = wanted_in_window = 0;
  step_seconds = 0;
}

void Balancer::State::add(BalanceEvent event) {
  constexpr size_t kMostEvents = 1024;
  event.step = step;
  if (parts.log) parts.log(event);
  if (events.size() == kMostEvents) events.erase(events.begin(), events.begin() + kMostEvents / 2);
  events.push_back(std::move(event));
}

void Balancer::State::collect() {
  const bool full = wanted_in_window >= config.interval;
  if (full || (config.phase && wanted_in_window > 0 && recorded_in_window >= ring_steps()))
    start_gathering();
}

void Balancer::State::start_gathering() {
  at = At::kGathering;
  const int64_t steps = std::min(recorded_in_window, recorder.recorded_steps());
  start("gather loads",
        [this, mine = pack_window(recorder, steps, config.phase, config.max_episodes)] {
          packed = bytes_to_rank_0(*job_group, mine);
        });
}

void Balancer::State::gathered() {
  start_planning();
}

// Out of memory, say, on this rank or another.
void Balancer::State::job_failed() {
  ++metrics.plans_failed;
  add({.kind = BalanceEvent::Kind::kFailed,
       .text = worker.status() == JobStatus::kFailed ? worker.failure()
                                                     : "another rank could not take part"});
  end_window();
}

void Balancer::State::start_planning() {
  at = At::kPlanning;
  plan_began = Clock::now();
  plan_began_step = step;
  if (!is_planner()) {
    ++job;
    return;
  }
  const Window window = unpack_windows(placement, packed);
  measure(window);
  costs.step_seconds =
      recorded_in_window > 0 ? step_seconds / static_cast<double>(recorded_in_window) : 0;
  const int spares = parts.slots ? parts.slots->num_spares() : num_spares(config, placement);
  const int64_t bytes =
      parts.slots ? static_cast<int64_t>(parts.slots->expert_bytes()) : parts.expert_bytes;
  plan = std::make_shared<PlanResult>();
  auto task = std::make_shared<const PlanTask>(
      PlanTask{config, policy, window, placement, parts.topology, history, bytes, spares, costs});
  start("plan", [task, result = plan] { *result = make_plan(*task); });
}

void Balancer::State::planned(std::span<const uint64_t> all) {
  const bool overdue =
      config.plan_deadline_steps > 0 && step - plan_began_step >= config.plan_deadline_steps;
  if (status_of(all[0]) == JobStatus::kRunning || job_of(all[0]) != job) {
    if (!overdue && !late(all[0])) return;
    // The planner goes on and may be through one day; nobody waits for it, and the next window
    // needs it free.
    plan = nullptr;
    ++metrics.plans_late;
    add({.kind = BalanceEvent::Kind::kLate,
         .seconds = seconds_between(plan_began, Clock::now()),
         .text = "the plan is not there in time"});
    return end_window();
  }
  start_sharing();
}

// The others learn of a plan that is not to be carried out by its having no changes.
void Balancer::State::start_sharing() {
  at = At::kSharing;
  std::vector<std::byte> message;
  if (is_planner()) {
    metrics.plan_seconds += plan->seconds;
    history = std::move(plan->history);
    const bool apply = plan->kind == PlanResult::Kind::kPlan && !config.screen;
    const std::vector<SlotChange> changes =
        apply ? changes_between(placement, plan->logical) : std::vector<SlotChange>();
    const PlanHeader header = {std::ssize(changes), plan->predicted};
    message.resize(sizeof header + changes.size() * sizeof(SlotChange));
    std::memcpy(message.data(), &header, sizeof header);
    if (apply)
      std::memcpy(message.data() + sizeof header, changes.data(),
                  changes.size() * sizeof(SlotChange));
  }
  start("share plan", [this, message = std::move(message)] {
    shared_plan = std::move(bytes_of_ranks(*job_group, message)[0]);
  });
}

void Balancer::State::shared() {
  if (is_planner()) {
    const double seconds = plan->seconds;
    switch (plan->kind) {
      case PlanResult::Kind::kNothing:
        break;
      case PlanResult::Kind::kRejected:
        ++metrics.plans_rejected;
        add({.kind = BalanceEvent::Kind::kRejected,
             .moves = plan->moves,
             .bytes = plan->bytes,
             .seconds = seconds,
             .predicted = plan->predicted,
             .text = plan->why});
        break;
      case PlanResult::Kind::kFailed:
        ++metrics.plans_failed;
        add({.kind = BalanceEvent::Kind::kFailed, .seconds = seconds, .text = plan->why});
        break;
      case PlanResult::Kind::kPlan:
        if (config.screen) {
          proposed = placement.with(plan->logical, placement.version() + 1);
        }
        add({.kind = BalanceEvent::Kind::kPlanned,
             .moves = plan->moves,
             .bytes = plan->bytes,
             .seconds = seconds,
             .predicted = plan->predicted,
             .text = config.screen ? "not applied: it is screened" : ""});
        break;
    }
  }
  PlanHeader header;
  std::memcpy(&header, shared_plan.data(), sizeof header);
  std::vector<SlotChange> changes(header.num_changes);
  if (changes.empty()) return end_window();
  std::memcpy(changes.data(), shared_plan.data() + sizeof header,
              changes.size() * sizeof(SlotChange));
  before = placement;
  target = with_changes(placement, changes, placement.version());
  predicted = header.predicted;
  layers.clear();
  for (int layer = placement.num_layers() - 1; layer >= 0; --layer) {
    std::vector<Transfer> transfers = plan_transfers(placement, *target, layer, parts.topology);
    if (!transfers.empty()) layers.push_back(std::move(transfers));
  }
  switched_in_plan = moves_in_plan = bytes_in_plan = 0;
  move_seconds = 0;
  start_staging();
}

void Balancer::State::start_staging() {
  at = At::kStaging;
  staging = true;
  next_stage_step = step + config.steps_per_layer;
  stage_result = {};
  start("migrate", [this] {
    const std::vector<Transfer>& transfers = layers.back();
    trace_transfers(TraceBuffer::now());
    stage_result = migrator->stage(transfers);
    if (stage_result.ok) {
      staged_table = std::make_shared<const SplitTable>(*target, transfers.front().layer,
                                                        parts.topology.node_of_rank);
    }
  });
}

// An arrow for each message, from the rank that sends it to the one that gets it.
void Balancer::State::trace_transfers(int64_t time) const {
  if (parts.trace == nullptr) return;
  for (const Transfer& t : layers.back()) {
    const int from = placement.rank_of_slot(t.from_slot), to = placement.rank_of_slot(t.slot);
    if (from == to) continue;
    const int64_t id =
        (next_stage_step * placement.num_layers() + t.layer) * placement.num_slots() + t.slot;
    if (from == rank) parts.trace->flow_start("expert", time, id);
    if (to == rank) parts.trace->flow_end("expert", time, id);
  }
}

void Balancer::State::staged(bool failed) {
  if (staging) switch_layer(failed);
  staging = false;
  if (layers.empty()) return finish_plan();
  if (step >= next_stage_step) start_staging();
}

// The layer whose experts have come, or not.
void Balancer::State::switch_layer(bool failed) {
  const Clock::time_point begin = Clock::now();
  const int64_t trace_begin = parts.step_trace != nullptr ? TraceBuffer::now() : 0;
  const std::vector<Transfer> transfers = std::move(layers.back());
  layers.pop_back();
  const int layer = transfers.front().layer;
  BalanceEvent event = {
      .layer = layer, .moves = std::ssize(transfers), .seconds = stage_result.seconds};
  std::vector<SlotChange> changes;
  for (const Transfer& t : transfers) {
    changes.push_back({t.layer, t.slot, t.expert});
    const bool is_sent = placement.rank_of_slot(t.slot) != placement.rank_of_slot(t.from_slot);
    event.bytes += is_sent ? static_cast<int64_t>(parts.slots->expert_bytes()) : 0;
  }
  metrics.moved_bytes += event.bytes;
  bytes_in_plan += event.bytes;
  move_seconds += stage_result.seconds;
  if (stage_result.ok && !failed) {
    event.kind = BalanceEvent::Kind::kSwitched;
    migrator->commit(layer);
    placement = with_changes(placement, changes, placement.version() + 1);
    recorder.begin_epoch(layer, placement.version());
    parts.place(layer, parts.slots->experts(layer, parts.format),
                std::exchange(staged_table, nullptr));
    ++switched_in_plan;
    ++layers_switched;
    moves_in_plan += event.moves;
    metrics.moves += event.moves;
    costs.seconds_per_layer =
        0.8 * costs.seconds_per_layer + 0.2 * seconds_between(begin, Clock::now());
  } else {
    event.kind = BalanceEvent::Kind::kRolledBack;
    event.text = stage_result.ok ? "a rank could not take part" : stage_result.reason;
    migrator->rollback();
    ++metrics.rolled_back_layers;
  }
  add(std::move(event));
  if (parts.step_trace != nullptr)
    parts.step_trace->slice("switch", trace_begin, layer, {"moves", std::ssize(transfers)});
}

void Balancer::State::finish_plan() {
  add({.kind = BalanceEvent::Kind::kCommitted,
       .moves = moves_in_plan,
       .bytes = bytes_in_plan,
       .seconds = move_seconds,
       .predicted = predicted});
  target.reset();
  if (bytes_in_plan > 0) {
    costs.seconds_per_byte =
        0.5 * costs.seconds_per_byte + 0.5 * move_seconds / static_cast<double>(bytes_in_plan);
  }
  if (switched_in_plan > 0) {
    ++metrics.rebalances;
    metrics.predicted_gain = predicted;
  } else {
    before.reset();
  }
  end_window();
}

// Of the window that has just been gathered.
void Balancer::State::measure(const Window& window) {
  const int num_layers = window.load.num_layers;
  double sum = 0, least = 1;
  for (int layer = 0; layer < num_layers; ++layer) {
    std::vector<int64_t> rows(ranks);
    for (int64_t part = 0; part < window.load.num_steps; ++part) {
      const auto of_part = window.rows(part, layer, ranks);
      for (size_t r = 0; r < rows.size(); ++r) rows[r] += of_part[r];
    }
    for (size_t r = 0; r < rows.size(); ++r) metrics.rank_tokens[r] += rows[r];
    sum += 1 / par(rows);
    least = std::min(least, 1 / par(rows));
  }
  metrics.balancedness_mean = sum / num_layers;
  metrics.balancedness_min = least;
  screen(window);
}

// How the last plan does on steps that it was not made from.
void Balancer::State::screen(const Window& window) {
  if (window.load.num_steps == 0) return;
  if (before) {
    const std::vector<double> realised =
        gains(*before, placement, window.load, config.split, parts.topology);
    metrics.realised_gain = mean_of(realised);
    const auto committed = std::find_if(
        events.rbegin(), events.rend(),
        [](const BalanceEvent& event) { return event.kind == BalanceEvent::Kind::kCommitted; });
    if (committed != events.rend()) committed->realised = metrics.realised_gain;
    before.reset();
  }
  if (proposed) {
    const std::vector<double> judged =
        gains(placement, *proposed, window.load, config.split, parts.topology);
    screened_gains.insert(screened_gains.end(), judged.begin(), judged.end());
    metrics.predicted_gain = plan ? plan->predicted : 0;
    metrics.realised_gain = mean_of(judged);
    const auto planned = std::find_if(
        events.rbegin(), events.rend(),
        [](const BalanceEvent& event) { return event.kind == BalanceEvent::Kind::kPlanned; });
    if (planned != events.rend()) planned->realised = metrics.realised_gain;
    proposed.reset();
  }
}

LoadRecorder& Balancer::recorder() {
  return state_->recorder;
}
const Placement& Balancer::placement() const {
  return state_->placement;
}
const BalanceMetrics& Balancer::metrics() const {
  return state_->metrics;
}
std::span<const BalanceEvent> Balancer::events() const {
  return state_->events;
}
int64_t Balancer::layers_switched() const {
  return state_->layers_switched;
}

Balancer::Verdict Balancer::verdict() const {
  const std::vector<double>& seen = state_->screened_gains;
  constexpr size_t kLeastEvidence = 8;
  if (seen.size() < kLeastEvidence) return Verdict::kNotEnoughEvidence;
  const double high = upper_95(seen);
  const double low = 2 * mean_of(seen) - high;
  if (low >= state_->config.screen_gain) return Verdict::kRecommended;
  return high < state_->config.screen_gain ? Verdict::kNotRecommended : Verdict::kNotEnoughEvidence;
}

std::string_view name(Balancer::Verdict verdict) {
  switch (verdict) {
    case Balancer::Verdict::kNotEnoughEvidence:
      return "not enough evidence";
    case Balancer::Verdict::kRecommended:
      return "recommended";
    case Balancer::Verdict::kNotRecommended:
      return "not recommended";
  }
  return "";
}

}  // namespace trimtab
