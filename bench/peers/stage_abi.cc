// SPDX-License-Identifier: Apache-2.0
// The experts stage as plain functions, for the Python programs here (ours.py): weights in, then
// tokens in and out. ExpertStage lives in a group of one rank, so it runs on a thread of its own.
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/experts/expert_stage.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

std::vector<std::shared_ptr<const Mlp>> pack(const ModelShape& model, const WeightDType& dtype,
                                             const std::byte* gate_up, const std::byte* down,
                                             Team& team) {
  const int64_t hidden = model.hidden, intermediate = model.intermediate,
                size = hidden * intermediate;
  const int64_t bytes = shape_bytes(dtype.source, 1);
  std::vector<std::shared_ptr<const Mlp>> slots(model.experts);
  std::vector<BufferArena> arenas(team.size());
  team.for_each(model.experts, [&](int64_t e, int member) {
    const std::byte* gate = gate_up + 2 * e * size * bytes;
    const MlpSource source{
        {gate, dtype.source, intermediate, hidden, hidden, 1, {}},
        {gate + size * bytes, dtype.source, intermediate, hidden, hidden, 1, {}},
        {down + e * size * bytes, dtype.source, hidden, intermediate, intermediate, 1, {}},
        {},
        {},
        {}};
    slots[e] = std::make_shared<Mlp>(source, Activation{}, dtype.weights, nullptr, &arenas[member]);
  });
  return slots;
}

class StageThread {
 public:
  StageThread(const ModelShape& model, const WeightDType& dtype, int64_t max_tokens, int threads,
              const std::byte* gate_up, const std::byte* down)
      : model_(model), dtype_(dtype), max_tokens_(max_tokens), threads_(threads), thread_([this] {
          serve();
        }) {
    call([&] {
      auto experts = make_grouped_experts(pack(model_, dtype_, gate_up, down, *team_),
                                          model_.hidden, dtype_.weights);
      stage_ =
          std::make_unique<ExpertStage>(model_, std::move(experts), max_tokens_, *comm_, *team_);
    });
  }
  ~StageThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  double run(int64_t tokens, const int32_t* ids, const float* weights, const std::byte* x,
             float* out) {
    const int64_t picks = tokens * model_.top_k;
    const Picks all{{ids, ids + picks}, {weights, weights + picks}};
    double seconds = 0;
    call([&] {
      const Stopwatch watch(*team_);
      stage_->run({x, tokens, model_.hidden, model_.hidden, dtype_.rows}, all,
                  Rows(out, tokens, model_.hidden));
      seconds = watch.seconds();
    });
    return seconds;
  }

 private:
  // Runs the job on the stage's thread and passes on what it throws.
  void call(const std::function<void()>& job) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    changed_.notify_all();
    changed_.wait(lock, [this] { return job_ == nullptr; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void serve() {
    run_ranks(1, [this](Communicator& comm) {
      Team team(threads_);
      team_ = &team;
      comm_ = &comm;
      std::unique_lock lock(mutex_);
      for (;;) {
        changed_.wait(lock, [this] { return stop_ || job_ != nullptr; });
        if (stop_) break;
        try {
          (*job_)();
        } catch (...) {
          error_ = std::current_exception();
        }
        job_ = nullptr;
        changed_.notify_all();
      }
      stage_.reset();
    });
  }

  ModelShape model_;
  const WeightDType& dtype_;
  int64_t max_tokens_;
  int threads_;
  Communicator* comm_ = nullptr;
  Team* team_ = nullptr;
  std::unique_ptr<ExpertStage> stage_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  const std::function<void()>* job_ = nullptr;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

// What went wrong last, for trimtab_stage_error. The Python side has one thread.
std::string last_error;

template <class Body>
auto guarded(const Body& body, decltype(body()) otherwise) {
  try {
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return otherwise;
  }
}

}  // namespace
}  // namespace trimtab::bench

extern "C" {

struct TrimtabStageShape {
  int64_t hidden, intermediate, max_tokens;
  int32_t experts, top_k, threads;
};

const char* trimtab_stage_error() {
  return trimtab::bench::last_error.c_str();
}

// The sizes of a model by name, max_tokens and threads left as they are. 0, or -1: see
// trimtab_stage_error.
int trimtab_stage_shape(const char* name, TrimtabStageShape* shape) {
  using namespace trimtab::bench;
  return guarded(
      [&] {
        const ModelShape& model = parse_model(name);
        shape->hidden = model.hidden;
        shape->intermediate = model.intermediate;
        shape->experts = model.experts;
        shape->top_k = model.top_k;
        return 0;
      },
      -1);
}

// gate_up: [experts, 2 intermediate, hidden], gate rows first; down: [experts, hidden,
// intermediate]; in the type that weights of this dtype are made from. Not needed afterwards. Null:
// see trimtab_stage_error.
void* trimtab_stage_make(const TrimtabStageShape* shape, const char* dtype, const void* gate_up,
                         const void* down) {
  using namespace trimtab::bench;
  return guarded(
      [&]() -> void* {
        const ModelShape model{"peer", shape->hidden, shape->intermediate, shape->experts,
                               shape->top_k};
        return new StageThread(model, find_weight_dtype(dtype), shape->max_tokens, shape->threads,
                               static_cast<const std::byte*>(gate_up),
                               static_cast<const std::byte*>(down));
      },
      nullptr);
}

// ids, weights: [tokens, top_k]; x: [tokens, hidden] in the type of the rows; out: f32. Seconds, or
// below zero: see trimtab_stage_error.
double trimtab_stage_run(void* stage, int64_t tokens, const int32_t* ids, const float* weights,
                         const void* x, float* out) {
  return trimtab::bench::guarded(
      [&] {
        return static_cast<trimtab::bench::StageThread*>(stage)->run(
            tokens, ids, weights, static_cast<const std::byte*>(x), out);
      },
      -1.0);
}

void trimtab_stage_free(void* stage) {
  delete static_cast<trimtab::bench::StageThread*>(stage);
}

}  // extern "C"
