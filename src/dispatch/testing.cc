// SPDX-License-Identifier: Apache-2.0
#include "dispatch/testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "comm/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Expert e maps x to slope(e) * x + shift(e, column).
float slope(int expert) {
  return 1.0F + 0.25F * static_cast<float>(expert);
}
float shift(int expert, int64_t column) {
  return 0.125F * static_cast<float>(expert * (column % 5)) - 1.0F;
}

float round_to(DType dtype, float value) {
  return dtype == DType::kBF16 ? to_float(to_bf16(value)) : value;
}

// A row as floats.
std::vector<float> values(ConstRows x, ConstRows scales) {
  std::vector<float> row(x.cols);
  const auto cols = static_cast<size_t>(x.cols);
  if (is_quantised(x.dtype)) {
    dequantize_rows(x, scales, Rows(row.data(), 1, x.cols));
  } else {
    for (size_t j = 0; j < cols; ++j) {
      row[j] = x.dtype == DType::kBF16 ? to_float(x.row_as<bf16_t>(0)[j]) : x.row_as<float>(0)[j];
    }
  }
  return row;
}

// Spreads `count` slots over the ranks as evenly as they go, the first ranks getting one more.
std::vector<int32_t> spread(int count, int ranks) {
  std::vector<int32_t> first{0};
  for (int r = 0; r < ranks; ++r)
    first.push_back(first.back() + count / ranks + (r < count % ranks ? 1 : 0));
  return first;
}

}  // namespace

Slots place(Placing placing, int ranks, int num_experts) {
  Slots slots;
  const auto append_all = [&] {
    for (int e = 0; e < num_experts; ++e) slots.logical.push_back(e);
  };
  append_all();
  switch (placing) {
    case Placing::kLinear:
      break;
    case Placing::kPermuted:
      std::shuffle(slots.logical.begin(), slots.logical.end(), std::mt19937(7));
      break;
    case Placing::kRedundant:
      for (int extra = 0; extra < ranks + 1; ++extra)
        slots.logical.insert(slots.logical.begin(), extra * 5 % num_experts);
      break;
    case Placing::kEverywhere:
      for (int r = 1; r < ranks; ++r) append_all();
      break;
    case Placing::kFirstRankEmpty:
      if (ranks > 1) {
        slots.first = spread(num_experts, ranks - 1);
        slots.first.insert(slots.first.begin(), 0);
        return slots;
      }
      break;
    case Placing::kTwins:
      append_all();
      std::ranges::sort(slots.logical);
      break;
  }
  slots.first = spread(static_cast<int>(slots.logical.size()), ranks);
  return slots;
}

int64_t Scene::all_tokens() const {
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}
int64_t Scene::first_token(int rank) const {
  return std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0});
}

int32_t Scene::slot_of_pick(int64_t token, int k) const {
  const int32_t id = ids[static_cast<size_t>(token * top_k + k)];
  if (id < 0) return id;
  if (table) return slot_ids[static_cast<size_t>(token * top_k + k)];
  const auto copies = std::ranges::count(slots.logical, id);
  int64_t turn = (token * 7 + k * 3) % copies;
  for (size_t slot = 0;; ++slot) {
    if (slots.logical[slot] == id && turn-- == 0) return static_cast<int32_t>(slot);
  }
}

void fill(Scene& scene, Routes routes, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-2.0F, 2.0F);
  const int64_t tokens = scene.all_tokens();
  std::vector<int32_t> experts(scene.num_experts);
  scene.ids.clear();
  scene.weights.clear();
  scene.x.clear();
  for (int64_t t = 0; t < tokens; ++t) {
    std::iota(experts.begin(), experts.end(), 0);
    std::shuffle(experts.begin(), experts.end(), random);
    for (int k = 0; k < scene.top_k; ++k) {
      int32_t id = experts[k];
      if (routes == Routes::kOneExpert) id = scene.num_experts / 2;
      if (routes == Routes::kMasked && (t % 3 == 0 || (t + k) % 2 == 0)) id = -1;
      if (routes == Routes::kDuplicates) id = experts[k / 2];
      scene.ids.push_back(id);
      // A masked pick has a weight that must not be used.
      scene.weights.push_back(id < 0 ? std::numeric_limits<float>::quiet_NaN() : value(random));
    }
    for (int h = 0; h < scene.hidden; ++h) scene.x.push_back(round_to(scene.dtype, value(random)));
  }
  if (!is_quantised(scene.dtype)) return;
  const ScaleShape shape = scale_shape(scene.dtype, scene.hidden);
  scene.rows.resize(scene.x.size());
  scene.scales.resize(static_cast<size_t>(tokens) * shape.row_bytes());
  const Rows x(scene.x.data(), tokens, scene.hidden);
  const Rows rows(scene.rows.data(), tokens, scene.hidden, scene.hidden, scene.dtype);
  const Rows scales(scene.scales.data(), tokens, shape.cols, shape.cols, shape.dtype);
  quantize_rows(x, rows, scales);
  dequantize_rows(rows, scales, x);
}

void share_out(Scene& scene, SplitRule rule) {
  std::vector<int> slots_per_rank;
  for (size_t r = 0; r < scene.tokens.size(); ++r) {
    slots_per_rank.push_back(scene.slots.first[r + 1] - scene.slots.first[r]);
  }
  const Placement placement(1, scene.num_experts, slots_per_rank, scene.slots.logical);
  scene.table = std::make_shared<const SplitTable>(placement, 0);
  scene.rule = rule;
  // Reading an expert costs as much as eight rows.
  scene.cost = std::make_shared<const CostModel>(
      std::vector<CostPoint>{{.rows = 1, .picoseconds = 900}, {.rows = 11, .picoseconds = 1900}});
  const auto experts = static_cast<size_t>(scene.num_experts);
  const auto picks_before = [&](size_t rank) {
    return static_cast<size_t>(scene.first_token(static_cast<int>(rank)) * scene.top_k);
  };
  std::vector<int32_t> counts(scene.tokens.size() * experts);
  for (size_t r = 0; r < scene.tokens.size(); ++r) {
    for (size_t i = picks_before(r); i < picks_before(r + 1); ++i) {
      if (scene.ids[i] >= 0) ++counts[r * experts + static_cast<size_t>(scene.ids[i])];
    }
  }
  Workspace workspace(split_workspace_bytes(*scene.table));
  const size_t slots = scene.slots.logical.size();
  std::vector<int32_t> shares(scene.tokens.size() * slots);
  split_tokens(rule, *scene.table, counts, workspace, shares, scene.cost.get());
  scene.rank_loads.resize(scene.tokens.size());
  split_rank_loads(*scene.table, shares, scene.rank_loads);
  scene.slot_ids = scene.ids;
  for (size_t r = 0; r < scene.tokens.size(); ++r) {
    assign_slots(
        *scene.table, std::span(shares).subspan(r * slots, slots),
        std::span(scene.slot_ids).subspan(picks_before(r), picks_before(r + 1) - picks_before(r)));
  }
}

float Scene::input(int64_t token, int64_t column, float weight) const {
  const auto i = static_cast<size_t>(token * hidden + column);
  if (!weight_on_input) return x[i];
  if (dtype != DType::kI8) return round_to(dtype, x[i] * weight);
  return static_cast<float>(static_cast<int8_t>(rows[i])) *
         (reinterpret_cast<const float*>(scales.data())[token] * weight);
}

bool is_exact(std::string_view kind) {
  return std::ranges::find(kExactKinds, kind) != std::end(kExactKinds);
}

TestedDispatcher::TestedDispatcher(std::string_view kind, DispatchShape shape, Communicator& comm) {
  const int ranks = comm.size(), rank = comm.rank();
  const int64_t capacity =
      shape.capacity > 0 ? shape.capacity : ranks * shape.max_tokens * shape.top_k;
  shape.capacity = 0;
  if (kind == "pull_batched") {
    shape.capacity = std::max<int64_t>(1, capacity);
    dispatcher_ = make_dispatcher(kind, shape, rank);
  } else if (kind == "packed_exact") {
    shape.exact_order = true;
    dispatcher_ = make_dispatcher("packed", shape, rank);
  } else if (kind == "all_gather_levels") {
    const int columns = ranks % 2 == 0 ? 2 : ranks;
    dispatcher_ = make_all_gather_dispatcher(shape, rank, std::vector{columns, ranks / columns});
  } else {
    dispatcher_ = make_dispatcher(kind, shape, rank, comm.hosts());
  }
  owned_ = dispatcher_->make_groups(comm);
  groups_ = pointers_to(owned_);
}

void run_scene_ranks(std::string_view kind, int ranks,
                     const std::function<void(Communicator&)>& body, GroupOptions options) {
  // Hosts of different sizes, whose ranks do not stand side by side. Processes are on the hosts on
  // which they are.
  const bool pretend = kind == "hybrid" && !ranks_are_processes();
  for (int r = 0; pretend && r < ranks; ++r) options.hosts.push_back(r % 3 == 1 ? 1 : 0);
  run_group(ranks, body, options);
}

void bring_together(const Scene& scene, std::vector<float>& out) {
  std::vector<int64_t> begins;
  for (int r = 0; r <= scene.ranks(); ++r) begins.push_back(scene.first_token(r) * scene.hidden);
  bring_together(out, begins);
}

Expected expect(const Scene& scene) {
  Expected expected;
  for (int64_t t = 0; t < scene.all_tokens(); ++t) {
    for (int h = 0; h < scene.hidden; ++h) {
      double sum = 0, magnitude = 0;
      for (int k = 0; k < scene.top_k; ++k) {
        const int32_t id = scene.ids[static_cast<size_t>(t * scene.top_k + k)];
        if (id < 0) continue;
        double weight = scene.weights[static_cast<size_t>(t * scene.top_k + k)];
        const float x = scene.input(t, h, static_cast<float>(weight));
        if (scene.weight_on_input) weight = 1;
        sum += weight * (double{slope(id)} * x + shift(id, h));
        magnitude += std::abs(weight) * (std::abs(double{slope(id)} * x) + std::abs(shift(id, h)));
      }
      expected.out.push_back(sum);
      expected.magnitude.push_back(magnitude);
    }
  }
  return expected;
}

void run_experts(const Scene& scene, int rank, const Tokens& tokens, Rows y, Left left) {
  std::optional<Board::Reading> reading;
  if (tokens.board != nullptr) reading.emplace(*tokens.board);
  int64_t begin = 0;
  for (size_t local = 0; local < tokens.counts.size(); ++local) {
    const auto slot = static_cast<size_t>(scene.slots.first[rank]) + local;
    const int expert = scene.slots.logical[slot];
    if (tokens.format == Format::kBatched) begin = static_cast<int64_t>(local) * tokens.capacity;
    for (int64_t row = begin; row < begin + tokens.counts[local]; ++row) {
      const float weight = left == Left::kWeightAndSum ? 1.0F : tokens.weights[row];
      const std::vector<float> x = values(tokens.row(row), tokens.row_scales(row));
      for (int64_t h = 0; h < y.cols; ++h) {
        y.row_as<float>(row)[h] = weight * (slope(expert) * x[h] + shift(expert, h));
      }
    }
    begin += tokens.counts[local];
  }
}

namespace {

// Experts work on kRowsAtOnce rows together.
void check_answers_overwrite_only_rows_before(const Tokens& tokens) {
  if (tokens.format == Format::kIndirect || tokens.x.rows == 0) return;
  const int64_t group = std::min(tokens.x.rows, kRowsAtOnce);
  for (const int64_t row : {group - 1, tokens.x.rows - 1}) {
    if (tokens.y.row(row) + tokens.y.row_bytes() > tokens.x.row(row + 1 - group))
      throw Error(cat("answer ", row, " overwrites rows that may not have been read"));
  }
}

}  // namespace

RankCall::RankCall(const Scene& scene, const Dispatcher& dispatcher, Lane& lane, int owner)
    : scene_(scene), comm_(lane.comm), owner_(owner < 0 ? lane.comm.rank() : owner) {
  const int64_t tokens = scene.tokens[owner_];
  const int64_t first = scene.first_token(owner_);
  const int64_t stride = scene.hidden + (owner_ % 2) * 3;
  const size_t element_bytes = shape_bytes(scene.dtype, 1);
  x_.assign(static_cast<size_t>(tokens * stride) * element_bytes, std::byte{0xff});
  const Rows x(x_.data(), tokens, scene.hidden, stride, scene.dtype);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < scene.hidden; ++h) {
      const auto i = static_cast<size_t>((first + t) * scene.hidden + h);
      if (is_quantised(scene.dtype))
        x.row(t)[h] = scene.rows[i];
      else if (scene.dtype == DType::kBF16)
        x.row_as<bf16_t>(t)[h] = to_bf16(scene.x[i]);
      else
        x.row_as<float>(t)[h] = scene.x[i];
    }
    for (int k = 0; k < scene.top_k; ++k) {
      const auto pick = static_cast<size_t>((first + t) * scene.top_k + k);
      ids_.push_back(scene.table ? scene.ids[pick] : scene.slot_of_pick(first + t, k));
      weights_.push_back(scene.weights[pick]);
    }
  }
  out_.assign(static_cast<size_t>(tokens * (scene.hidden + 1)),
              std::numeric_limits<float>::quiet_NaN());
  const ScaleShape shape = scale_shape(scene.dtype, scene.hidden);
  scales_.assign(scene.scales.begin() + first * static_cast<int64_t>(shape.row_bytes()),
                 scene.scales.begin() + (first + tokens) * static_cast<int64_t>(shape.row_bytes()));
  const ConstRows scales(scales_.data(), shape.cols > 0 ? tokens : 0, shape.cols, shape.cols,
                         shape.dtype);
  exchange_ = dispatcher.dispatch({x,
                                   ids_,
                                   weights_,
                                   scene.top_k,
                                   scene.weight_on_input,
                                   scales,
                                   {scene.table.get(), scene.rule, scene.cost.get()}},
                                  lane);
}

void RankCall::compute(Left left) {
  const Tokens& tokens = exchange_->tokens();
  check_answers_overwrite_only_rows_before(tokens);
  Rows y = tokens.y;
  if (left != Left::kWeightAndSum) {  // answers in the exchange's memory and elsewhere, in turns
    y_ = comm_.allocate(static_cast<size_t>(tokens.x.rows * scene_.hidden) * sizeof(float));
    y = Rows(y_.as<float>(), tokens.x.rows, scene_.hidden);
  }
  run_experts(scene_, comm_.rank(), tokens, y, left);
  if (left != Left::kNothing) return exchange_->send_back(y, left);
  sums_ =
      comm_.allocate(static_cast<size_t>(tokens.picks.tokens() * scene_.hidden) * sizeof(float));
  const Rows sums(sums_.as<float>(), tokens.picks.tokens(), scene_.hidden);
  for (int64_t t = 0; t < sums.rows; ++t) {
    float* const sum = sums.row_as<float>(t);
    std::fill_n(sum, sums.cols, 0.0F);
    for (int k = 0; k < tokens.picks.top_k; ++k) {
      const int32_t row = tokens.picks.rows[static_cast<size_t>(t * tokens.picks.top_k + k)];
      for (int64_t h = 0; row >= 0 && h < sums.cols; ++h) sum[h] += y.row_as<float>(row)[h];
    }
  }
  exchange_->send_back(sums, left);
}

Left left_of_turn(const Dispatcher& dispatcher, size_t turn) {
  const bool sums = dispatcher.kind().brings_tokens && !dispatcher.shape().exact_order;
  constexpr Left kLefts[] = {Left::kWeightAndSum, Left::kSum, Left::kNothing};
  return kLefts[turn % (sums ? 3 : 2)];
}

void RankCall::finish(std::span<float> all_out) {
  const int64_t tokens = scene_.tokens[owner_];
  const Rows out(reinterpret_cast<std::byte*>(out_.data()), tokens, scene_.hidden,
                 scene_.hidden + 1, DType::kF32);
  exchange_->finish(out);
  float* to = all_out.data() + scene_.first_token(owner_) * scene_.hidden;
  for (int64_t t = 0; t < tokens; ++t)
    std::copy_n(out.row_as<float>(t), scene_.hidden, to + t * scene_.hidden);
}

int64_t exchange_once(const Scene& scene, const Dispatcher& dispatcher, Lane& lane, Left left,
                      std::span<float> all_out, int owner) {
  RankCall call(scene, dispatcher, lane, owner);
  const size_t mark = lane.workspace.mark();
  int64_t rounds = 0;
  bool more = true;
  for (; more; ++rounds) {
    call.exchange().wait(Stage::kArrived);
    call.compute(left);
    call.exchange().wait(Stage::kReturned);
    call.finish(all_out);
    more = call.exchange().more();
    call.exchange().wait(Stage::kDrained);
    lane.workspace.release(mark);
  }
  return rounds;
}

DispatchShape shape_of(const Scene& scene, int64_t max_tokens, int top_k, int64_t capacity) {
  return {.max_tokens = max_tokens,
          .hidden = scene.hidden,
          .top_k = top_k,
          .dtype = scene.dtype,
          .first_slots = scene.slots.first,
          .capacity = capacity,
          .num_experts = scene.table ? scene.num_experts : 0,
          .results = scene.results};
}

int64_t most_rows_of_a_slot(const Scene& scene) {
  std::vector<int64_t> rows(scene.slots.logical.size() + 1);
  for (int64_t t = 0; t < scene.all_tokens(); ++t) {
    for (int k = 0; k < scene.top_k; ++k) {
      const int32_t slot = scene.slot_of_pick(t, k);
      if (slot >= 0) ++rows[slot];
    }
  }
  return *std::ranges::max_element(rows);
}

void poison(Workspace& workspace) {
  const size_t mark = workspace.mark();
  const size_t left = (workspace.capacity() - mark) / 64 * 64;
  std::memset(workspace.take_bytes(left), 0xff, left);
  workspace.release(mark);
}

std::string difference(const Scene& scene, const Expected& expected, std::span<const float> out,
                       int additions) {
  const double unit = std::ldexp(1.0, -24) * (3 + additions);
  for (size_t i = 0; i < expected.out.size(); ++i) {
    if (std::abs(out[i] - expected.out[i]) <= unit * expected.magnitude[i])
      continue;  // false for NaN
    const auto hidden = static_cast<size_t>(scene.hidden);
    return cat("token ", i / hidden, ", column ", i % hidden, ": ", out[i], ", expected ",
               expected.out[i], " +- ", unit * expected.magnitude[i]);
  }
  return "";
}

}  // namespace trimtab
