// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/whole_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "base/cat.h"
#include "bench/dispatch/rank_means.h"
#include "bench/experts/expert_set.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"
#include "trimtab/layer.h"
#include "trimtab/placement.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

// Microbatches go through layers one behind the other, as a model has them, half a layer apart.
constexpr int64_t kLayersOfOverlap = 4;

// Take rows and give them back as they come: nothing.
class NoExperts final : public Experts {
 public:
  NoExperts(Format format, int64_t hidden, int num_local)
      : format_(format), hidden_(hidden), num_local_(num_local) {}
  Format format() const override { return format_; }
  Left left() const override { return Left::kWeightAndSum; }
  int64_t hidden() const override { return hidden_; }
  int num_local() const override { return num_local_; }
  DType dtype() const override { return DType::kBF16; }
  bool overwrites_rows() const override { return true; }
  size_t scratch_bytes(int64_t) const override { return 0; }
  void run(const Tokens&, Rows, std::span<std::byte>, Team&) const override {}

 private:
  Format format_;
  int64_t hidden_;
  int num_local_;
};

// What all dispatchers of one rank share: weights and tokens.
struct World {
  World(const LayerCase& c, const Communicator& comm)
      : placement(Placement::linear(1, c.num_experts, comm.size())),
        replicas(std::make_shared<const SplitTable>(placement, 0)),
        num_local(placement.slots_of_rank(comm.rank())),
        experts(find_weight_dtype("bf16"), c.hidden, c.intermediate, std::max(1, num_local), team),
        gate_weights(cells(c.num_experts, c.hidden)),
        x(cells(c.tokens, c.hidden)) {
    const Rows weights(gate_weights.data(), c.num_experts, c.hidden);
    fill_random(weights, 1, 1, team);
    gate = std::make_shared<const Linear>(
        MatrixSource{weights.data, DType::kF32, c.num_experts, c.hidden, c.hidden, 1, {}},
        VectorSource{}, DType::kF32);
    router = std::make_shared<const Router>(
        RouterConfig{.num_experts = c.num_experts, .top_k = c.top_k});
    fill_random(Rows(x.data(), c.tokens, c.hidden), 1, comm.rank() + 2, team);
  }

  Team team{1};
  Placement placement;
  std::shared_ptr<const SplitTable> replicas;
  int num_local;
  ExpertSet experts;
  std::vector<float> gate_weights, x;
  std::shared_ptr<const Linear> gate;
  std::shared_ptr<const Router> router;
};

// One rank's times of one round of one dispatcher, milliseconds a layer.
struct Times {
  double wall = 0, cpu = 0, transfer = 0, overlapped = 0;
};

class Runner {
 public:
  Runner(const std::string& dispatcher, const LayerCase& c, World& world, Communicator& comm)
      : case_(c),
        world_(world),
        comm_(comm),
        other_comm_(comm.duplicate()),
        dispatcher_(make_dispatcher(
            dispatcher, {c.tokens, c.hidden, c.top_k, DType::kBF16, world.placement.first_slots()},
            comm.rank(), comm.hosts())),
        layer_(parts(real_experts())),
        idle_(parts(std::make_shared<NoExperts>(dispatcher_->format(), c.hidden, world.num_local))),
        lanes_{OwnLane(*this, comm), OwnLane(*this, *other_comm_)},
        num_layers_(c.overlap ? kLayersOfOverlap : 1),
        out_(world.x.size()) {}
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  std::span<const float> result() {
    run(layer_.forward(x(0, case_.tokens), out(0, case_.tokens), lanes_[0].lane));
    return out_;
  }

  Times round() {
    Times times;
    comm_.barrier();
    const Stopwatch wall(CLOCK_MONOTONIC), cpu(CLOCK_THREAD_CPUTIME_ID);
    one_batch(layer_);
    times.cpu = 1e3 * cpu.seconds() / layers();
    times.wall = 1e3 * wall.seconds() / layers();
    if (!case_.overlap) return times;
    times.transfer = time([&] { one_batch(idle_); });
    times.overlapped = time([&] { two_microbatches(); });
    return times;
  }

 private:
  struct OwnLane {
    OwnLane(const Runner& subject, Communicator& comm)
        : owned(subject.dispatcher_->make_groups(comm)),
          groups(pointers_to(owned)),
          workspace(comm.allocate(subject.layer_.workspace_bytes(subject.case_.tokens))),
          lane{comm, workspace, subject.world_.team, groups} {}
    OwnLane(const OwnLane&) = delete;
    OwnLane& operator=(const OwnLane&) = delete;

    std::vector<std::unique_ptr<Communicator>> owned;
    std::vector<Communicator*> groups;
    Workspace workspace;
    Lane lane;
  };

  std::shared_ptr<const Experts> real_experts() const {
    std::vector<std::shared_ptr<const Mlp>> slots;
    for (int s = 0; s < world_.num_local; ++s) slots.push_back(world_.experts.mlp(s));
    return make_grouped_experts(std::move(slots), case_.hidden, DType::kBF16,
                                dispatcher_->format());
  }
  MoeLayer::Parts parts(std::shared_ptr<const Experts> experts) const {
    return {.gate = world_.gate,
            .router = world_.router,
            .replicas = world_.replicas,
            .dispatcher = dispatcher_,
            .experts = std::move(experts),
            .shared = std::nullopt};
  }

  ConstRows x(int64_t first, int64_t count) const {
    return ConstRows(world_.x.data(), case_.tokens, case_.hidden).slice(first, count);
  }
  Rows out(int64_t first, int64_t count) {
    return Rows(out_.data(), case_.tokens, case_.hidden).slice(first, count);
  }
  void one_batch(const MoeLayer& layer) {
    for (int64_t l = 0; l < num_layers_; ++l) {
      run(layer.forward(x(0, case_.tokens), out(0, case_.tokens), lanes_[0].lane));
    }
  }
  void two_microbatches() {
    const int64_t half = (case_.tokens + 1) / 2;
    overlap(num_layers_, [&](int64_t, int microbatch) {
      const int64_t first = microbatch == 0 ? 0 : half,
                    count = microbatch == 0 ? half : case_.tokens - half;
      return layer_.forward(x(first, count), out(first, count), lanes_[microbatch].lane);
    });
  }
  double layers() const { return static_cast<double>(num_layers_); }
  template <class Body>
  double time(const Body& body) {
    comm_.barrier();
    const Stopwatch wall(CLOCK_MONOTONIC);
    body();
    return 1e3 * wall.seconds() / layers();
  }

  const LayerCase& case_;
  World& world_;
  Communicator& comm_;
  const std::unique_ptr<Communicator> other_comm_;
  const std::shared_ptr<const Dispatcher> dispatcher_;
  const MoeLayer layer_, idle_;
  std::array<OwnLane, 2> lanes_;
  int64_t num_layers_;
  std::vector<float> out_;
};

void compare(std::span<const float> got, std::span<const float> wanted, const LayerCase& c,
             const std::string& name) {
  const size_t hidden = c.hidden;
  for (size_t row = 0; row < wanted.size(); row += hidden) {
    double largest = 0;
    for (const float value : wanted.subspan(row, hidden))
      largest = std::max<double>(largest, std::abs(value));
    for (size_t i = row; i < row + hidden; ++i) {
      if (largest > 0 && std::abs(got[i] - wanted[i]) <= 1e-5 * largest) continue;
      throw Error(cat("bench dispatch: ", name, " gives ", got[i], " for token ", row / hidden,
                      ", column ", i - row, ", ", c.dispatchers.front(), " gives ", wanted[i]));
    }
  }
}

template <class Figure>
Spread spread(const std::vector<Times>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Times& round : rounds) values.push_back(figure(round));
  return spread_of(std::move(values));
}

WholeLayerRow row_of(const std::string& dispatcher, const std::vector<Times>& rounds,
                     const std::vector<Times>& first, bool overlap) {
  WholeLayerRow row{.dispatcher = dispatcher,
                    .ms_layer = spread(rounds, [](const Times& t) { return t.wall; }),
                    .cpu_ms_layer = spread(rounds, [](const Times& t) { return t.cpu; }),
                    .rounds = static_cast<int>(rounds.size())};
  std::vector<double> ratios;
  // The ratio first: 100 x / x need not be 100.
  for (size_t i = 0; i < rounds.size(); ++i) ratios.push_back(100 * (rounds[i].cpu / first[i].cpu));
  row.pct_of_first = spread_of(std::move(ratios));
  if (!overlap) return row;
  row.ms_transfer = spread(rounds, [](const Times& t) { return t.transfer; });
  row.ms_overlapped = spread(rounds, [](const Times& t) { return t.overlapped; });
  row.pct_hidden = spread(rounds, [](const Times& t) {
    return 100 * (t.wall - t.overlapped) / std::min(t.transfer, t.wall - t.transfer);
  });
  return row;
}

}  // namespace

std::vector<WholeLayerRow> bench_whole_layer(Communicator& comm, const LayerCase& subject,
                                             const Effort& effort) {
  World world(subject, comm);
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<float> wanted;
  for (const std::string& dispatcher : subject.dispatchers) {
    runners.push_back(std::make_unique<Runner>(dispatcher, subject, world, comm));
    const std::span<const float> result = runners.back()->result();
    if (runners.size() == 1) wanted.assign(result.begin(), result.end());
    compare(result, wanted, subject, dispatcher);
  }
  std::vector<std::vector<Times>> rounds(runners.size());
  double total = 0;  // the same on every rank, as all see the same means
  while (std::ssize(rounds[0]) < effort.least ||
         (total < effort.seconds * 1e3 && std::ssize(rounds[0]) < effort.most)) {
    for (size_t i = 0; i < runners.size(); ++i) {
      Times times = runners[i]->round();
      std::array values = {times.wall, times.cpu, times.transfer, times.overlapped};
      take_means_over_ranks(comm, values);
      times = {values[0], values[1], values[2], values[3]};
      rounds[i].push_back(times);
      total += (subject.overlap ? kLayersOfOverlap : 1) *
               (times.wall + times.transfer + times.overlapped);
    }
  }
  std::vector<WholeLayerRow> rows;
  for (size_t i = 0; i < runners.size(); ++i) {
    rows.push_back(row_of(subject.dispatchers[i], rounds[i], rounds[0], subject.overlap));
  }
  return rows;
}

}  // namespace trimtab::bench
