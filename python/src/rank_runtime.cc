// SPDX-License-Identifier: Apache-2.0
#include "rank_runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "expert_cost.h"
#include "rank_layout.h"
#include "trimtab/error.h"
#include "trimtab/measure_cost.h"
#include "trimtab/migrator.h"
#include "trimtab/require_equal.h"
#include "trimtab/split.h"
#include "trimtab/table.h"

namespace trimtab::python {
namespace {

RankRuntimeOptions checked_ranks(RankRuntimeOptions options, int num_experts, int top_k,
                                 int ranks) {
  const auto check = [](bool fits, const auto&... what) {
    if (!fits) throw InvalidArgument(cat(what...));
  };
  check(options.threads >= 1, "threads of a rank must be at least 1, is ", options.threads);
  check(options.max_tokens >= 1, "max_tokens must be at least 1, is ", options.max_tokens);
  const bool in_parts = options.layout && !options.layout->ep;
  check(num_experts >= 1 && (in_parts || num_experts % ranks == 0), num_experts,
        " experts can't be dealt evenly to ", ranks, " ranks");
  check(options.redundant >= 0 && options.redundant % ranks == 0, options.redundant,
        " redundant experts can't be dealt evenly to ", ranks, " ranks");
  check(options.redundant == 0 || !options.balancer.empty(),
        "redundant experts are of use only with a balancer");
  check(top_k >= 1 && top_k <= num_experts, "top_k must be in [1, ", num_experts, "], is ", top_k);
  return options;
}

ParallelLayout checked_layout(const RankRuntimeOptions& options, int ranks) {
  const ParallelLayout layout = options.layout.value_or(data_parallel(ranks));
  check_layout(layout, ranks);
  if (options.layout && options.same_tokens) {
    throw InvalidArgument(cat("same_tokens leaves the sum over ranks to the caller, with layout ",
                              name(layout), " outputs are whole; take one of the two"));
  }
  if (layout.sums_parts() && !options.balancer.empty()) {
    throw InvalidArgument(cat("layout ", name(layout),
                              ": a balancer needs whole experts and slices of tokens (ep and sp)"));
  }
  if (layout.sums_parts() && options.placement) {
    throw InvalidArgument(
        cat("layout ", name(layout), ": a placement needs whole experts and slices of tokens"));
  }
  return layout;
}

BalancerConfig balancer_config(const std::string& json, const std::string& cost) {
  if (json.empty()) {
    if (!cost.empty()) throw InvalidArgument("a cost is of use only with a balancer");
    return {};
  }
  BalancerConfig config = parse_balancer_config(json, "the balancer's settings", !cost.empty());
  if (config.phase)
    throw InvalidArgument("balancer: steps are not told apart by phase here; leave phase out");
  check_cost_of_rule(config.split, cost);
  if (config.screen) throw InvalidArgument("balancer: there is no screening here; leave it out");
  return config;
}

// Does a placement that ranks are to begin with fit them?
void check_placement(const Placement& placement, int layers, int experts, int ranks) {
  if (placement.num_layers() != layers || placement.num_experts() != experts ||
      placement.num_ranks() != ranks) {
    throw InvalidArgument(cat("the placement is for ", placement.num_layers(), " layers of ",
                              placement.num_experts(), " experts on ", placement.num_ranks(),
                              " ranks; there are ", layers, " of ", experts, " on ", ranks));
  }
  for (int r = 0; r < ranks; ++r) {
    if (placement.slots_of_rank(r) >= experts / ranks) continue;
    throw InvalidArgument(cat("the placement gives rank ", r, " ", placement.slots_of_rank(r),
                              " slots, fewer than the ", experts / ranks,
                              " experts that it has loaded"));
  }
}

std::string slots_of(const std::optional<Placement>& placement) {
  if (!placement) return "none";
  std::string slots;
  for (int l = 0; l < placement->num_layers(); ++l)
    for (const int32_t logical : placement->logical(l)) slots += cat(logical, " ");
  for (const int32_t first : placement->first_slots()) slots += cat(first, " ");
  return slots;
}

void clear(Rows rows) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    const Rows row = rows.slice(r, 1);
    std::memset(row.data, 0, shape_bytes(row.dtype, 1, row.cols));
  }
}

// With the layer, and what to do, where a peer is lost.
[[noreturn]] void rethrow(const std::exception_ptr& error, int layer) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError& e) {
    const std::string text = e.what();
    throw CommError(e.rank(), e.peer(), cat("MoE layer ", layer, ", ", e.operation()),
                    cat(text.substr(text.find(": ") + 2), "; start all ranks again"));
  }
}

}  // namespace

RankRuntime::RankRuntime(std::shared_ptr<Communicator> comm, int num_experts, int top_k,
                         RankRuntimeOptions options)
    : comm_(std::move(comm)),
      num_experts_(num_experts),
      top_k_(top_k),
      options_(checked_ranks(std::move(options), num_experts, top_k, comm_->size())),
      layout_(checked_layout(options_, comm_->size())),
      balancer_config_(balancer_config(options_.balancer, options_.cost)),
      threads_(options_.threads, options_.share_openmp),
      step_words_(comm_->size()),
      step_bytes_(comm_->size()),
      step_statuses_(comm_->size()) {}

RankRuntime::~RankRuntime() = default;

int RankRuntime::add_layer(std::shared_ptr<const ExpertTable> table) {
  if (started_) throw InvalidArgument("a layer can't be added after start()");
  if (table->num_experts() != num_own()) {
    throw InvalidArgument(cat("a layer of ", table->num_experts(), " experts, wanted ", num_own(),
                              ": ", num_experts_, " of ", ranks(), " ranks, ", name(layout_)));
  }
  check_parts(*table);
  if (tables_.empty()) {
    hidden_ = table->hidden();
    format_ = table->format();
  } else if (table->hidden() != hidden_ || table->format() != format_) {
    throw InvalidArgument(cat("a layer of hidden size ", table->hidden(), " in ",
                              name(table->format()), ", the first one has ", hidden_, " in ",
                              name(format_)));
  }
  tables_.push_back(std::move(table));
  return static_cast<int>(tables_.size()) - 1;
}

void RankRuntime::check_parts(const ExpertTable& table) const {
  const auto [parts, part] = table.parts();
  // A table of all parts has this rank's as well.
  if (parts == layout_.expert_parts() && (part < 0 || part == own_part())) return;
  throw InvalidArgument(cat("layout ", name(layout_), ": rank ", comm_->rank(), " holds part ",
                            own_part(), " of ", layout_.expert_parts(),
                            " of each expert; the weights have ",
                            part < 0 ? std::string("all") : cat("part ", part), " of ", parts));
}

void RankRuntime::start() {
  if (started_) throw InvalidArgument("start() is called once");
  take_given_cost();
  require_same_ranks();
  if (!cost_error_.empty()) throw InvalidArgument(cost_error_);
  if (tables_.empty()) throw InvalidArgument("a runtime needs at least one layer");
  const bool moves = !options_.balancer.empty() || options_.placement;
  if (moves && options_.weights.left != Left::kWeightAndSum)
    throw InvalidArgument("left: experts that move leave weighing and summing to the end");
  if (options_.placement) check_placement(*options_.placement, num_layers(), num_experts_, ranks());
  placement_ = std::make_unique<Placement>(loaded_placement());
  load_.resize(cells(num_layers(), num_experts_));
  if (moves) make_slots();
  if (options_.placement) move_to(*options_.placement);
  const auto dispatcher = make_dispatcher();
  make_layers(dispatcher);
  const int64_t share = dispatcher->shape().max_tokens;
  state_ = std::make_unique<RankState>(comm_->duplicate(), layout_, *dispatcher,
                                       pass_bytes(layers_.front().layer, share), options_.threads);
  if (!options_.balancer.empty()) make_balancer();
  weight_bytes_ = slots_ ? slots_->bytes() : 0;
  for (const auto& table : tables_) weight_bytes_ += slots_ ? 0 : table->bytes();
  tables_.clear();
  started_ = true;
}

// A file may be another one, or none, on other ranks, so they hear first what each has found.
void RankRuntime::take_given_cost() {
  if (tables_.empty()) return;
  try {
    cost_ = given_cost(options_.cost, *tables_.front(), options_.threads);
  } catch (const Error& error) {
    cost_error_ = error.what();
  }
}

void RankRuntime::require_same_ranks() {
  const bool empty = tables_.empty();
  require_equal(*comm_,
                std::vector<NamedDigest>{
                    named_value("Trimtab's version", options_.version),
                    named_value("the number of MoE layers", cat(tables_.size())),
                    named_value("experts", cat(num_experts_)),
                    named_value("top_k", cat(top_k_)),
                    named_value("hidden size", empty ? "none" : cat(hidden_)),
                    named_value("weight format", empty ? "none" : name(format_)),
                    named_value("dispatcher", options_.dispatcher),
                    named_value("layout", options_.layout ? name(layout_) : std::string("none")),
                    named_value("max_tokens", cat(options_.max_tokens)),
                    named_value("row_budget", options_.row_budget ? cat(*options_.row_budget)
                                                                  : std::string("none")),
                    named_value("same_tokens", cat(static_cast<int>(options_.same_tokens))),
                    named_value("weight_on_input", cat(options_.weights.on_input)),
                    named_value("left", cat(static_cast<int>(options_.weights.left))),
                    named_value("redundant experts", cat(options_.redundant)),
                    named_value("placement", slots_of(options_.placement)),
                    named_value("balancer", options_.balancer),
                    named_value("cost", options_.cost),
                    {"the costs in that file", cost_ ? cost_->fingerprint() : 0, cost_error_}});
}

// Each rank's experts in order, and the first of them once more in its other slots: what a rank has
// loaded is all it needs. The placement that ranks begin with, or the first plan, gives those slots
// other experts.
Placement RankRuntime::loaded_placement() const {
  const auto layers = static_cast<int>(tables_.size());
  if (!layout_.ep) return placement_of_layout(layout_, layers, num_experts_);
  const int own = num_own();
  std::vector<int> slots(ranks(), own + options_.redundant / ranks());
  if (options_.placement) {
    for (int r = 0; r < ranks(); ++r) slots[r] = options_.placement->slots_of_rank(r);
  }
  std::vector<int32_t> logical;
  for (int layer = 0; layer < layers; ++layer) {
    for (int r = 0; r < ranks(); ++r) {
      for (int s = 0; s < slots[r]; ++s) logical.push_back(r * own + s % own);
    }
  }
  return {layers, num_experts_, std::move(slots), std::move(logical)};
}

std::shared_ptr<const Dispatcher> RankRuntime::make_dispatcher() {
  const int slices = options_.same_tokens ? ranks() : layout_.token_slices();
  const Placement of_lane = placement_of_lane(layout_, *placement_);
  DispatchShape shape;
  shape.max_tokens = token_slice(options_.max_tokens, slices, 0).count;
  shape.hidden = static_cast<int>(hidden_);
  shape.top_k = top_k_;
  shape.dtype = format_.rows();
  shape.first_slots = of_lane.first_slots();
  if (shares_out()) shape.num_experts = num_experts_;
  auto made = make_rank_dispatcher(layout_, shape, comm_->rank(), comm_->hosts(),
                                   {.dispatcher = options_.dispatcher,
                                    .row_budget = options_.row_budget,
                                    .shares_out = shares_out()});
  dispatcher_name_ = made->name();
  if (layout_.token_slices() == 1) return made;
  return make_sliced_dispatcher(std::move(made), options_.max_tokens, layout_.token_slices());
}

// May experts have replicas that tokens are shared out over?
bool RankRuntime::shares_out() const {
  const bool replicas = !options_.balancer.empty() ||
                        (options_.placement && options_.placement->num_slots() > num_experts_);
  return replicas && balancer_config_.split != SplitRule::kStatic;
}

void RankRuntime::make_slots() {
  int spares = options_.balancer.empty() ? 0 : num_spares(balancer_config_, *placement_);
  for (int l = 0; options_.placement && l < num_layers(); ++l) {
    const std::vector<Move> moves = plan_moves(*placement_, *options_.placement, l);
    spares = std::max(spares, spares_needed(moves, placement_->first_slots())[comm_->rank()]);
  }
  const int first = placement_->first_slot(comm_->rank());
  // Slots are filled layer by layer, and what a table holds is needed no more then: a rank never
  // has more than one layer's experts twice.
  const auto source = [&](int layer, int slot) {
    if (layer > 0) tables_[layer - 1].reset();
    const int32_t logical = placement_->logical(layer)[first + slot];
    return ExpertSlots::Expert{tables_[layer]->experts()[logical - first_own()], logical};
  };
  slots_ = std::make_unique<ExpertSlots>(
      placement_->num_layers(), placement_->slots_of_rank(comm_->rank()), spares, source, *comm_);
}

// Brings experts to where the target says, layer by layer. All of a layer's moves fit the spares.
void RankRuntime::move_to(const Placement& target) {
  Migrator migrator(*slots_, placement_->first_slots(), comm_->duplicate());
  for (int l = 0; l < num_layers(); ++l) {
    const std::vector<Move> moves = plan_moves(*placement_, target, l);
    const StageResult staged = migrator.stage(moves);
    if (!staged.ok) throw Error(cat("layer ", l, " of the placement: ", staged.reason));
    migrator.commit(l);
  }
  *placement_ = target;
}

std::shared_ptr<const Experts> RankRuntime::experts_of(const ExpertTable& table,
                                                       Format format) const {
  const auto own = table.experts(own_part());
  return make_grouped_experts({own.begin(), own.end()}, hidden_, format_, format,
                              options_.weights.left);
}

void RankRuntime::make_layers(const std::shared_ptr<const Dispatcher>& dispatcher) {
  const Placement of_lane = placement_of_lane(layout_, *placement_);
  const auto hosts = comm_->hosts().first(of_lane.num_ranks());
  for (int l = 0; l < placement_->num_layers(); ++l) {
    MoeLayer::Parts parts;
    parts.replicas = std::make_shared<const SplitTable>(of_lane, l, hosts);
    if (dispatcher->shares_out()) parts.split = balancer_config_.split;
    parts.dispatcher = dispatcher;
    parts.experts = slots_ ? slots_->experts(l, dispatcher->format())
                           : experts_of(*tables_[l], dispatcher->format());
    parts.weight_on_input = options_.weights.on_input;
    if (l == 0 && options_.cost == "measure") agree_on_cost(*parts.experts);
    parts.cost = cost_;
    parts.layer = l;
    const int slots = placement_->slots_of_rank(comm_->rank());
    layers_.push_back(
        {MoeLayer(std::move(parts)), std::vector<int32_t>(slots), std::vector<int64_t>(slots)});
  }
}

// Rank 0 measures, and its model becomes that of all ranks.
void RankRuntime::agree_on_cost(const Experts& experts) {
  std::optional<CostModel> mine;
  if (comm_->rank() == 0) mine = measured_cost(experts, options_.threads);
  cost_ = std::make_shared<const CostModel>(broadcast_cost(*comm_, mine ? &*mine : nullptr));
}

void RankRuntime::make_balancer() {
  steps_comm_ = comm_->duplicate();
  balancer_ = std::make_unique<Balancer>(
      balancer_config_,
      Balancer::Parts{.placement = *placement_,
                      .topology = {.node_of_rank = {comm_->hosts().begin(), comm_->hosts().end()}},
                      .cost = cost_,
                      .slots = slots_.get(),
                      .format = layers_.front().layer.dispatcher().format(),
                      .place =
                          [this](int layer, std::shared_ptr<const Experts> experts,
                                 std::shared_ptr<const SplitTable> replicas) {
                            layers_[layer].layer.replace(std::move(experts), std::move(replicas));
                          },
                      .replace_cost =
                          [this](const std::shared_ptr<const CostModel>& cost) {
                            for (RankLayer& own : layers_) own.layer.replace_cost(cost);
                            cost_ = cost;
                          }},
      *comm_);
}

void RankRuntime::begin_step(bool counts) {
  ++steps_;
  if (!balancer_) return;
  if (step_is_open_) balancer_->after_step(step_counts_);
  const StepWord mine{balancer_->status(), counts ? uint64_t{1} : 0};
  Pending words =
      steps_comm_->all_gather_v(std::as_bytes(std::span(&mine, 1)),
                                std::as_writable_bytes(std::span(step_words_)), step_bytes_);
  words.wait();
  words.wait_released();
  std::ranges::transform(step_words_, step_statuses_.begin(), &StepWord::status);
  balancer_->before_step(Phase::kDecode, step_statuses_);
  step_counts_ = std::ranges::any_of(step_words_, [](const StepWord& w) { return w.counts != 0; });
  step_is_open_ = true;
}

void RankRuntime::forward(int layer, const RoutedTokens& call, bool counts) {
  if (!started_) throw InvalidArgument("start() comes before the first call");
  if (layer < 0 || layer >= std::ssize(layers_))
    throw InvalidArgument(cat("layer ", layer, " is not there; there are ", layers_.size()));
  if (call.x.rows > options_.max_tokens) {
    throw InvalidArgument(
        cat(call.x.rows, " tokens in a call, max_tokens is ", options_.max_tokens));
  }
  try {
    if (layer == 0) begin_step(counts);
  } catch (const CommError&) {
    rethrow(std::current_exception(), layer);
  }
  RankLayer& own = layers_[layer];
  const int64_t tokens = call.x.rows;
  const TokenSlice share =
      options_.same_tokens ? token_slice(tokens, ranks(), comm_->rank()) : TokenSlice{0, tokens};
  const RoutedTokens mine = call.slice(share.first, share.count);
  on_threads([&] { run_pass(own, mine, *state_); });
  if (state_->error) rethrow(state_->error, layer);
  const int64_t end = share.first + share.count;
  clear(call.out.slice(0, share.first));
  clear(call.out.slice(end, tokens - end));
  count_load(layer);
  if (!balancer_ || !step_is_open_) return;
  const std::span<int32_t> recorded = balancer_->recorder().counts(layer);
  for (size_t s = 0; s < own.counts.size(); ++s) recorded[s] += own.counts[s];
  balancer_->recorder().expert_nanoseconds() += own.nanoseconds;
}

void RankRuntime::count_load(int layer) {
  const Placement& now = placement();
  const std::span<const int32_t> held = now.logical(layer).subspan(now.first_slot(comm_->rank()));
  const std::span<int64_t> load = std::span(load_).subspan(cells(layer, num_experts_));
  const std::vector<int32_t>& counts = layers_[layer].counts;
  for (size_t s = 0; s < counts.size(); ++s) load[held[s]] += counts[s];
}

std::vector<int64_t> RankRuntime::take_load() {
  std::vector<int64_t> taken(load_.size());
  std::swap(taken, load_);
  return taken;
}

void RankRuntime::on_threads(const std::function<void()>& body) {
  Team& team = state_->team;
  team.admit();
  threads_.run([&](int member) {
    if (member != 0) return team.help(member);
    body();
    team.dismiss();
  });
}

std::string RankRuntime::dispatcher() const {
  if (!started_) throw InvalidArgument("there is no dispatcher before start()");
  return dispatcher_name_;
}

int64_t RankRuntime::row_budget() const {
  if (!started_) throw InvalidArgument("there is no dispatcher before start()");
  return layers_.front().layer.dispatcher().shape().row_budget;
}

const Placement& RankRuntime::placement() const {
  if (!started_) throw InvalidArgument("there is no placement before start()");
  return balancer_ ? balancer_->placement() : *placement_;
}

std::string RankRuntime::metrics() const {
  return balancer_ ? prometheus_text(balancer_->metrics()) : std::string();
}

int64_t RankRuntime::layers_switched() const {
  return balancer_ ? balancer_->layers_switched() : 0;
}

}  // namespace trimtab::python
