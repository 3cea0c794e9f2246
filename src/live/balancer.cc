// SPDX-License-Identifier: Apache-2.0
// The state machine of live balancing. Every rank runs it in step with the others: it changes its
// state in before_step() only, and only by what all ranks know alike, which is the statuses that
// they have told each other (agreement.h) and the number of steps. Work that takes time is a job of
// the background thread; plan_in_flight.h has the jobs. The states follow each other like this:
//
//   collecting -> gathering -> planning -> sharing -> staging -> collecting
//   steps are     loads go     rank 0      all ranks  experts move and layers
//   recorded      to rank 0    plans       hear of it are switched, a few at a time
#include "trimtab/balancer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/cat.h"
#include "live/agreement.h"
#include "live/check_parts.h"
#include "live/plan_in_flight.h"
#include "live/plan_life.h"
#include "live/rank_speeds.h"
#include "live/screening.h"
#include "live/worker.h"
#include "trimtab/error.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = BalanceEvent::Kind;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// How long a planner may take to come back when the Balancer ends.
constexpr std::chrono::seconds kPatience(1);

Balancer::Parts checked(const BalancerConfig& config, Balancer::Parts parts,
                        const Communicator& comm) {
  check_parts(config, parts, comm);
  return parts;
}

}  // namespace

struct Balancer::State {
  enum class At { kCollecting, kGathering, kPlanning, kSharing, kStaging };

  State(const BalancerConfig& configuration, Parts given, Communicator& comm);

  RankStatus status() const;
  void wait_for_job() const;
  void keep_recorded_steps() const;
  void go_on(std::span<const uint64_t> statuses);
  void start(const char* name, Worker::Job work);

  void collect();
  void start_gathering();
  void gather(const RecordedSteps& recorded);
  void start_planning();
  PlanTask make_task();
  void measure();
  void take_measured();
  void take_shared_speeds();
  void plan_or_deadline(const RankStatus& planner);
  void start_sharing();
  void take_shared_plan();
  void tell_of_plan(const PlanResult& result);
  void start_staging();
  void take_staged(bool failed);
  void switch_layers(bool failed);
  BalanceEvent switch_layer(PlanInFlight::StagedLayer& staged, bool failed);
  void end_plan();
  void end_failed_job();
  void end_window();
  void finish();
  void end_background();
  void count_rows();

  void add(BalanceEvent event);
  void set_realised(Kind kind, double gain);
  bool is_planner() const { return rank == 0; }

  const BalancerConfig config;
  const Parts parts;
  const int rank;
  const std::shared_ptr<const Policy> policy;
  Placement placement;
  LoadRecorder recorder;

  StatusExchange exchange;
  bool exchanges_itself = false;  // before_step(phase) is used: nobody else brings the statuses
  PlanInFlight plan;
  Screening screening;
  // The window that has been gathered and what it says, on rank 0. The gathering job writes it.
  Window gathered;
  Screening::Gains measured;
  std::vector<double> pars, pars_in_time;  // [layers]; in time: empty without a cost model

  CostInUse cost;

  bool is_finished = false;
  At at = At::kCollecting;
  uint64_t job = 0;  // the number of the latest job
  int64_t step = 0;
  Phase phase = Phase::kDecode;
  Clock::time_point step_began, plan_began;
  int64_t gathering_began_step = 0, plan_began_step = 0, next_stage_step = 0;
  bool is_staging = false;  // a staging has begun and its layer is not yet switched

  // The window that is being recorded.
  struct {
    int64_t steps = 0;   // of the configured phase
    double seconds = 0;  // time that they took
  } window;

  std::shared_ptr<const History> history;
  Costs costs;
  PlanLife life;
  BalanceMetrics metrics;
  std::vector<BalanceEvent> events;
  int64_t layers_switched = 0;

  Worker worker;  // last: its job ends before the rest goes
};

Balancer::State::State(const BalancerConfig& configuration, Parts given, Communicator& comm)
    : config(configuration),
      parts(checked(config, std::move(given), comm)),
      rank(comm.rank()),
      policy(parts.policy ? parts.policy : make_policy(config.policy, config.policy_options)),
      placement(parts.placement),
      // Steps are recorded on while a window is packed.
      recorder(placement.num_layers(), placement.slots_of_rank(rank), 2 * config.interval),
      exchange(comm),
      plan(config, parts, comm),
      cost(parts.cost, comm.size(), config.measure_speeds && parts.replace_cost != nullptr),
      life(config.expected_life_windows),
      worker(parts.trace) {
  for (int layer = 0; layer < placement.num_layers(); ++layer)
    recorder.begin_epoch(layer, placement.version());
  metrics.split = name(config.split);
  metrics.policy = policy->name();
  metrics.rank_tokens.resize(comm.size());
  events.reserve(1024);
}

Balancer::Balancer(const BalancerConfig& config, Parts parts, Communicator& comm)
    : state_(std::make_unique<State>(config, std::move(parts), comm)) {}

Balancer::~Balancer() {
  State& s = *state_;
  // A job that peers take part in ends with them; only a planner may never end.
  const bool alone = s.at == State::At::kPlanning || s.at == State::At::kCollecting;
  if (s.is_planner() && alone) s.worker.set_patience(kPatience);
}

void Balancer::before_step(Phase phase) {
  state_->exchanges_itself = true;
  before_step(phase, state_->exchange.end());
}

void Balancer::before_step(Phase phase, std::span<const uint64_t> statuses) {
  State& s = *state_;
  if (std::ssize(statuses) != s.placement.num_ranks()) {
    throw InvalidArgument(cat("balancer: statuses of ", statuses.size(), " ranks, there are ",
                              s.placement.num_ranks()));
  }
  if (s.is_finished) throw InvalidArgument("balancer: a step after finish()");
  const Clock::time_point begin = Clock::now();
  if (s.worker.status() == JobStatus::kBroken) s.worker.rethrow();
  s.keep_recorded_steps();
  s.go_on(statuses);
  s.phase = phase;
  s.recorder.begin_step(phase);
  s.step_began = Clock::now();
  s.metrics.stall_seconds += seconds_between(begin, s.step_began);
}

void Balancer::after_step(bool counts) {
  State& s = *state_;
  if (counts && s.step >= s.config.warmup_steps) {
    // A window has steps of its phase alone, however rare they are.
    const bool is_of_window = !s.config.phase || *s.config.phase == s.phase;
    is_of_window ? s.recorder.keep_step() : s.recorder.count_step();
    if (is_of_window) {
      ++s.window.steps;
      s.window.seconds += seconds_between(s.step_began, Clock::now());
    }
  } else {
    s.recorder.skip_step();
  }
  ++s.step;
  if (s.exchanges_itself) s.exchange.begin(status());
}

uint64_t Balancer::status() {
  State& s = *state_;
  if (!s.config.use_async) {
    const Clock::time_point begin = Clock::now();
    s.wait_for_job();
    s.metrics.stall_seconds += seconds_between(begin, Clock::now());
  }
  return packed(s.status());
}

void Balancer::State::wait_for_job() const {
  if (at == At::kCollecting) return;  // a job that still runs then is a planner that was late
  if (at != At::kPlanning || config.plan_deadline_seconds == 0) return worker.wait();
  constexpr double kLongest = 1e9;  // so that the clock does not overflow
  const std::chrono::duration<double> patience(std::min(config.plan_deadline_seconds, kLongest));
  worker.wait(plan_began + std::chrono::ceil<Clock::duration>(patience));
}

RankStatus Balancer::State::status() const {
  // Ranks that have no part in planning are done with it at once.
  if (at == At::kPlanning && !is_planner()) return {job, JobStatus::kDone, false};
  const JobStatus now = worker.status();
  const bool is_late = at == At::kPlanning && now == JobStatus::kRunning &&
                       config.plan_deadline_seconds > 0 &&
                       seconds_between(plan_began, Clock::now()) >= config.plan_deadline_seconds;
  return {job, now, is_late};
}

// The recorder must not come round to the steps that are being packed. Windows are packed in far
// less time than they are recorded in, so nothing waits here but in windows of a step or two.
void Balancer::State::keep_recorded_steps() const {
  if (at == At::kGathering && step - gathering_began_step >= config.interval) worker.wait();
}

// One step of the state machine.
void Balancer::State::go_on(std::span<const uint64_t> statuses) {
  if (at == At::kPlanning) return plan_or_deadline(unpacked(statuses[0]));
  const Agreed outcome = agreed(statuses, job);
  if (outcome == Agreed::kNotYet) return;
  const bool failed = outcome == Agreed::kFailed;
  switch (at) {
    case At::kCollecting:
      return collect();
    case At::kGathering:
      return failed ? end_failed_job() : start_planning();
    case At::kSharing:
      return failed ? end_failed_job() : take_shared_plan();
    case At::kStaging:
      return take_staged(failed);
    case At::kPlanning:
      return;
  }
}

void Balancer::State::start(const char* name, Worker::Job work) {
  ++job;
  worker.start(std::move(work), name);
}

void Balancer::State::end_window() {
  at = At::kCollecting;
  window = {};
}

// A job has failed on this rank or another, for want of memory, say.
void Balancer::State::end_failed_job() {
  if (at == At::kGathering) screening.drop();
  ++metrics.plans_failed;
  const bool here = worker.status() == JobStatus::kFailed;
  add({.kind = Kind::kFailed,
       .text = here ? worker.failure() : "another rank could not take part"});
  end_window();
}

void Balancer::State::collect() {
  if (window.steps >= config.interval) start_gathering();
}

void Balancer::State::start_gathering() {
  at = At::kGathering;
  gathering_began_step = step;
  const int64_t steps = std::min({window.steps, recorder.recorded_steps(), config.interval});
  start("gather loads", [this, recorded = RecordedSteps(recorder, steps)] { gather(recorded); });
}

// In the background, as is everything that takes time in proportion to the window.
void Balancer::State::gather(const RecordedSteps& recorded) {
  std::vector<std::byte> packed;
  std::exception_ptr wrong;
  try {
    packed = pack_window(recorded, config.phase, config.max_episodes, cost.now().get());
  } catch (const std::exception&) {
    wrong = std::current_exception();  // the job fails, once peers have had its message
  }
  plan.gather(packed);
  if (wrong) std::rethrow_exception(wrong);
  if (is_planner()) measure();
}

// Unpacks and measures the window that has just been gathered. Where it throws, the job has failed.
// What it reads does not change while a window is gathered.
void Balancer::State::measure() {
  gathered = unpack_windows(placement, plan.windows(), cost.now().get());
  measured = screening.measure(placement, {gathered.load, gathered.single},
                               serving_of(config, parts.topology, cost.now().get()));
  pars = window_pars(gathered.rank_loads);
  pars_in_time = {};
  for (int layer = 0; cost.now() && layer < placement.num_layers(); ++layer)
    pars_in_time.push_back(mean_of(step_pars(gathered.rank_times, layer)));
}

void Balancer::State::start_planning() {
  at = At::kPlanning;
  plan_began = Clock::now();
  plan_began_step = step;
  if (!is_planner()) {
    ++job;
    return;
  }
  take_measured();
  costs.step_seconds = window.steps > 0 ? window.seconds / static_cast<double>(window.steps) : 0;
  start("plan", plan.make(make_task()));
}

PlanTask Balancer::State::make_task() {
  const bool has_slots = parts.slots != nullptr;
  int max_receive = has_slots ? parts.slots->num_spares() : num_spares(config, placement);
  if (parts.shares_weights) max_receive = placement.num_slots();
  return {.config = config,
          .policy = policy,
          .cost = cost.next(),
          .window = std::move(gathered),
          .current = placement,
          .topology = parts.topology,
          .history = history,
          .expert_bytes =
              has_slots ? static_cast<int64_t>(parts.slots->expert_bytes()) : parts.expert_bytes,
          .max_receive = max_receive,
          .costs = costs};
}

// What the window that has been gathered says of the ranks, and of the plan before this one.
void Balancer::State::take_measured() {
  metrics.rank_tokens = gathered.rank_rows;
  metrics.par_rows = mean_of(pars);
  if (cost.now()) metrics.par_time = mean_of(pars_in_time);
  metrics.balancedness_mean = 0;
  for (const double par : pars)
    metrics.balancedness_mean += balancedness(par) / static_cast<double>(pars.size());
  metrics.balancedness_min = balancedness(std::ranges::max(pars));

  cost.take(gathered.times);
  screening.take(measured);
  if (measured.in_force) life.measured(*measured.in_force);
  costs.life_windows = life.windows();
  if (measured.applied) set_realised(Kind::kCommitted, *measured.applied);
  if (!measured.screened) return;
  metrics.predicted_gain = measured.screened_predicted;
  set_realised(Kind::kPlanned, *measured.screened);
}

// All ranks are here between the same two steps.
void Balancer::State::take_shared_speeds() {
  const auto speeds = plan.speeds();
  if (speeds.empty()) return;
  cost.use(speeds);
  if (parts.replace_cost) parts.replace_cost(cost.now());
  std::string text = "the ranks' speeds are taken to be";
  for (const int32_t speed : speeds)
    text += cat(" ", static_cast<double>(speed) / CostModel::kNominalSpeed);
  metrics.rank_speeds.assign(speeds.begin(), speeds.end());
  add({.kind = Kind::kSpeeds, .text = std::move(text)});
}

void Balancer::State::set_realised(Kind kind, double gain) {
  metrics.realised_gain = gain;
  const auto latest = std::find_if(events.rbegin(), events.rend(),
                                   [&](const BalanceEvent& event) { return event.kind == kind; });
  if (latest != events.rend()) latest->realised = gain;
}

void Balancer::State::plan_or_deadline(const RankStatus& planner) {
  if (planner.job == job && planner.status != JobStatus::kRunning) return start_sharing();
  const bool overdue =
      config.plan_deadline_steps > 0 && step - plan_began_step >= config.plan_deadline_steps;
  if (!overdue && !planner.is_late) return;
  // The planner goes on and may end one day. Nobody waits for it, but the next window is gathered
  // only once the background thread is free.
  plan.drop();
  ++metrics.plans_late;
  add({.kind = Kind::kLate,
       .seconds = seconds_between(plan_began, Clock::now()),
       .text = "the plan is not there in time"});
  end_window();
}

void Balancer::State::start_sharing() {
  at = At::kSharing;
  if (is_planner()) {
    metrics.plan_seconds += plan.result().seconds;
    history = std::move(plan.result().history);
  }
  start("share plan",
        plan.share(placement, is_planner() ? cost.to_tell() : std::vector<int32_t>()));
}

void Balancer::State::take_shared_plan() {
  take_shared_speeds();
  if (is_planner()) tell_of_plan(plan.result());
  plan.has_layers() ? start_staging() : end_window();
}

void Balancer::State::tell_of_plan(const PlanResult& result) {
  if (!result.left_out.empty()) {
    std::string text = result.left_out.front();
    if (result.left_out.size() > 1)
      text += cat("; and ", result.left_out.size() - 1, " layers more");
    add({.kind = Kind::kLeftOut, .moves = 0, .text = std::move(text)});
  }
  BalanceEvent event = {.moves = result.moves,
                        .bytes = result.bytes,
                        .seconds = result.seconds,
                        .predicted = result.predicted,
                        .text = result.why};
  switch (result.kind) {
    case PlanResult::Kind::kNothing:
      return;
    case PlanResult::Kind::kRejected:
      ++metrics.plans_rejected;
      event.kind = Kind::kRejected;
      return add(std::move(event));
    case PlanResult::Kind::kFailed:
      ++metrics.plans_failed;
      return add({.kind = Kind::kFailed, .seconds = result.seconds, .text = result.why});
    case PlanResult::Kind::kPlan:
      event.kind = Kind::kPlanned;
      event.text = config.screen ? "not applied: it is screened" : "";
      if (config.screen) {
        screening.note_screened(placement.with(result.logical, placement.version() + 1),
                                result.predicted);
      }
      return add(std::move(event));
  }
}

void Balancer::State::start_staging() {
  at = At::kStaging;
  is_staging = true;
  next_stage_step = step + config.steps_per_layer;
  start("migrate", plan.stage(placement, next_stage_step));
}

void Balancer::State::take_staged(bool failed) {
  if (is_staging) switch_layers(failed);
  is_staging = false;
  if (!plan.has_layers()) return end_plan();
  if (step >= next_stage_step) start_staging();
}

// Switches the layers whose experts have been staged on all ranks, or rolls them back.
void Balancer::State::switch_layers(bool failed) {
  const Clock::time_point begin = Clock::now();
  const int64_t trace_begin = parts.step_trace != nullptr ? TraceBuffer::now() : 0;
  std::vector<PlanInFlight::StagedLayer> staged = plan.take_staged();
  std::vector<BalanceEvent> switched;
  int64_t count = 0, moves = 0;
  for (PlanInFlight::StagedLayer& layer : staged) {
    switched.push_back(switch_layer(layer, failed));
    if (switched.back().kind != Kind::kSwitched) continue;
    ++count;
    moves += switched.back().moves;
  }
  if (count > 0) placement = plan.take_next_placement();
  for (BalanceEvent& event : switched) {
    if (event.kind == Kind::kSwitched) recorder.begin_epoch(event.layer, placement.version());
    add(std::move(event));
  }
  layers_switched += count;
  metrics.moves += moves;
  if (count > 0) {
    const double each = seconds_between(begin, Clock::now()) / static_cast<double>(count);
    costs.seconds_per_layer = 0.8 * costs.seconds_per_layer + 0.2 * each;
  }
  if (parts.step_trace != nullptr) {
    parts.step_trace->slice("switch", trace_begin, staged.front().layer, {"moves", moves});
  }
}

// Gives one layer its new experts, all but the placement. Returns what happened.
BalanceEvent Balancer::State::switch_layer(PlanInFlight::StagedLayer& staged, bool failed) {
  BalanceEvent event = {.kind = Kind::kSwitched,
                        .layer = staged.layer,
                        .moves = std::ssize(staged.moves),
                        .bytes = staged.bytes,
                        .seconds = staged.result.seconds};
  metrics.moved_bytes += staged.bytes;
  if (staged.result.ok && !failed) {
    plan.commit(staged);
    auto experts = parts.slots ? parts.slots->experts(staged.layer, parts.format) : nullptr;
    parts.place(staged.layer, std::move(experts), std::move(staged.table));
  } else {
    event.kind = Kind::kRolledBack;
    event.text = staged.result.ok ? "a rank could not take part" : staged.result.reason;
    plan.roll_back(staged);
    ++metrics.rolled_back_layers;
  }
  return event;
}

void Balancer::State::end_plan() {
  const PlanInFlight::Totals& totals = plan.totals();
  add({.kind = Kind::kCommitted,
       .moves = totals.moves,
       .bytes = totals.bytes,
       .seconds = totals.seconds,
       .predicted = totals.predicted});
  if (totals.bytes > 0) {
    costs.seconds_per_byte =
        0.5 * costs.seconds_per_byte + 0.5 * totals.seconds / static_cast<double>(totals.bytes);
  }
  if (totals.switched_layers > 0) {
    ++metrics.rebalances;
    metrics.predicted_gain = totals.predicted;
    screening.note_applied(plan.before());
    life.begin(totals.predicted);
  }
  end_window();
}

// What the background does ends, on all ranks alike. Layers that are on their way are switched, or
// rolled back; no other begins.
void Balancer::State::end_background() {
  if (at == At::kCollecting) return;
  if (at == At::kPlanning) {
    plan.drop();
    return end_window();
  }
  worker.wait();
  if (worker.status() == JobStatus::kBroken) worker.rethrow();
  exchange.begin(packed(status()));
  const bool failed = agreed(exchange.end(), job) == Agreed::kFailed;
  if (at == At::kStaging) {
    if (is_staging) switch_layers(failed);
    is_staging = false;
    return end_plan();
  }
  if (failed) return end_failed_job();
  if (at == At::kGathering && is_planner()) take_measured();
  end_window();
}

// Rank 0 hears how many rows each rank has had in all.
void Balancer::State::count_rows() {
  plan.gather(pack_window(RecordedSteps(recorder, 0), config.phase, config.max_episodes));
  if (is_planner()) metrics.rank_tokens = unpack_windows(placement, plan.windows()).rank_rows;
}

void Balancer::State::finish() {
  if (std::exchange(is_finished, true)) return;
  if (exchanges_itself) exchange.end();
  end_background();
  count_rows();
}

void Balancer::finish() {
  state_->finish();
}

void Balancer::State::add(BalanceEvent event) {
  constexpr size_t kMostEvents = 1024;
  event.step = step;
  if (parts.log) parts.log(event);
  if (events.size() == kMostEvents) events.erase(events.begin(), events.begin() + kMostEvents / 2);
  events.push_back(std::move(event));
}

LoadRecorder& Balancer::recorder() {
  return state_->recorder;
}
const Placement& Balancer::placement() const {
  return state_->placement;
}
const std::shared_ptr<const CostModel>& Balancer::cost() const {
  return state_->cost.now();
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
  return state_->screening.verdict(state_->config.screen_gain);
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
