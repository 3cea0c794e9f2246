// SPDX-License-Identifier: Apache-2.0
// Two ranks (threads) exchange all experts of a layer, again and again: what staging takes beside
// copying as many bytes, of the ranks' own threads and from beginning to end. See bench/README.md.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/experts/model_shape.h"
#include "bench/experts/paired.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"
#include "trimtab/migrator.h"
#include "trimtab/table.h"

namespace {

using namespace trimtab;
using namespace trimtab::bench;

constexpr int kRanks = 2;

// Seconds of one rank.
struct Times {
  double wall, own;
};

template <class Body>
Times timed(const Body& body) {
  const Stopwatch wall(CLOCK_MONOTONIC), own(CLOCK_THREAD_CPUTIME_ID);
  body();
  return {wall.seconds(), own.seconds()};
}

std::shared_ptr<const Mlp> random_expert(const ModelShape& shape, WeightFormat format) {
  std::mt19937 random(1);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    std::vector<float> values(cells(rows, cols));
    for (float& v : values) v = static_cast<float>(random()) * 0x1p-32F - 0.5F;
    return values;
  };
  const auto source = [](const std::vector<float>& values, int64_t rows, int64_t cols) {
    return MatrixSource{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, rows, cols,
                        cols};
  };
  const auto gate = matrix(shape.intermediate, shape.hidden),
             up = matrix(shape.intermediate, shape.hidden);
  const auto down = matrix(shape.hidden, shape.intermediate);
  const MlpSource mlp = {source(gate, shape.intermediate, shape.hidden),
                         source(up, shape.intermediate, shape.hidden),
                         source(down, shape.hidden, shape.intermediate)};
  return std::make_shared<const Mlp>(mlp, Activation{}, format);
}

void print(const char* what, double bytes, const std::vector<Times>& times) {
  const auto rate = [&](double Times::* clock) {
    std::vector<double> rates;
    for (const Times& t : times) rates.push_back(1e-9 * bytes / (t.*clock));
    return spread_of(std::move(rates));
  };
  const Spread wall = rate(&Times::wall), own = rate(&Times::own);
  std::printf(
      "%-10s GB/s a rank: %6.2f (%.2f-%.2f) of the thread's time, %6.2f (%.2f-%.2f) from beginning "
      "to end\n",
      what, own.median, own.low, own.high, wall.median, wall.low, wall.high);
}

void measure(const ModelShape& shape, WeightFormat format, int experts, int repeat) {
  const auto expert = random_expert(shape, format);
  std::vector<int32_t> logical(cells(kRanks, experts)), other(logical.size());
  std::iota(logical.begin(), logical.end(), 0);
  std::rotate_copy(logical.begin(), logical.begin() + experts, logical.end(), other.begin());
  const std::vector<int> slots_each(kRanks, experts);
  const Placement placements[] = {{1, kRanks * experts, slots_each, logical},
                                  {1, kRanks * experts, slots_each, other}};
  std::vector<Times> staging, copying;
  double bytes = 0;
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto source = [&](int, int slot) {
      return ExpertSlots::Expert{expert, logical[comm.rank() * experts + slot]};
    };
    ExpertSlots slots(1, experts, experts, source, comm);
    Migrator migrator(slots, placements[0].first_slots(), comm.duplicate());
    // The first round touches the spares.
    for (int round = 0; round < repeat + 1; ++round) {
      const auto moves = plan_moves(placements[round % 2], placements[(round + 1) % 2], 0);
      comm.barrier();
      StageResult result;
      const Times staged = timed([&] { result = migrator.stage(moves); });
      if (!result.ok) throw Error(result.reason);
      migrator.commit(0);
      comm.barrier();
      const Times copied = timed([&] {
        for (int s = 0; s < experts; ++s) {
          std::memcpy(slots.spare(s).data(), slots.message(0, s).data(), slots.expert_bytes());
        }
      });
      if (comm.rank() != 0 || round == 0) continue;
      staging.push_back(staged);
      copying.push_back(copied);
      bytes = static_cast<double>(result.bytes_received);
    }
  });
  std::printf("%s, %s: %d experts of %.1f MB each way\n", std::string(shape.name).c_str(),
              name(format).c_str(), experts, 1e-6 * bytes / experts);
  print("staging", bytes, staging);
  print("memcpy", bytes, copying);
}

}  // namespace

// bench_migration [MODEL [FORMAT [EXPERTS [REPEAT]]]]
int main(int argc, char** argv) {
  try {
    const auto argument = [&](int i, const char* value) {
      return std::string(i < argc ? argv[i] : value);
    };
    measure(parse_model(argument(1, "qwen3-30b")), parse_weight_format(argument(2, "bf16")),
            std::stoi(argument(3, "16")), std::stoi(argument(4, "21")));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_migration: %s\n", error.what());
    return 1;
  }
}
