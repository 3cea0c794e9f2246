// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.h"
#include "base/cat.h"
#include "bindings.h"
#include "numbers.h"
#include "rank_runtime.h"
#include "routed_arrays.h"
#include "trimtab/error.h"
#include "trimtab/process_communicator.h"

namespace trimtab::python {
namespace {

using namespace nb::literals;

// The group of all ranks, which several runtimes of a process can share.
struct RankGroup {
  std::shared_ptr<Communicator> comm;
};

std::vector<std::byte> exchanged(const nb::callable& exchange, std::span<const std::byte> mine) {
  const nb::bytes sent(reinterpret_cast<const char*>(mine.data()), mine.size());
  const auto all = nb::cast<nb::bytes>(exchange(sent));
  const auto* const data = reinterpret_cast<const std::byte*>(all.data());
  return {data, data + all.size()};
}

// Streams of the caller's, whose threads are the library's: each call takes the GIL.
class PythonStreams final : public HostStreams {
 public:
  explicit PythonStreams(nb::object streams)
      : streams_(std::move(streams)),
        send_(streams_.attr("send")),
        receive_(streams_.attr("receive")) {}
  ~PythonStreams() override {
    if (Py_IsInitialized()) {
      const nb::gil_scoped_acquire gil;
      for (nb::object* object : {&receive_, &send_, &streams_}) object->reset();
    } else {  // its objects have gone with it
      for (nb::object* object : {&receive_, &send_, &streams_}) object->release();
    }
  }
  PythonStreams(const PythonStreams&) = delete;
  PythonStreams& operator=(const PythonStreams&) = delete;

  void send(int rank, std::span<const std::byte> bytes) override {
    const nb::gil_scoped_acquire gil;
    call(send_, rank, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  void receive(int rank, std::span<std::byte> bytes) override {
    const nb::gil_scoped_acquire gil;
    call(receive_, rank, bytes.data(), bytes.size());
  }

 private:
  // The view can be written to either way: torch wants no other.
  static void call(const nb::object& function, int rank, std::byte* data, size_t bytes) {
    const auto view = nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(data),
                                                        static_cast<Py_ssize_t>(bytes), kWritable));
    if (!view.is_valid()) nb::raise_python_error();
    try {
      function(rank, view);
    } catch (nb::python_error& error) {  // its text, while the GIL is there
      throw Error(cat(nb::str(error.type().attr("__name__")).c_str(), ": ",
                      nb::str(error.value()).c_str()));
    }
  }

  static constexpr int kWritable = 0x200;  // PyBUF_WRITE, which the limited API of 3.10 lacks

  nb::object streams_, send_, receive_;
};

// Deletes without the GIL, whether the caller has it or not: threads that need it are waited for.
template <class T>
void delete_without_gil(T* object) {
  if (!Py_IsInitialized()) return delete object;
  const nb::gil_scoped_acquire held;
  const nb::gil_scoped_release released;
  delete object;
}

RankGroup make_group(int rank, const nb::callable& exchange, double timeout,
                     const std::optional<nb::object>& streams) {
  auto comm = make_process_communicator(
      rank, [&](std::span<const std::byte> mine) { return exchanged(exchange, mine); },
      {.timeout = checked_timeout(timeout)},
      streams ? std::make_shared<PythonStreams>(*streams) : nullptr);
  return {{comm.release(), delete_without_gil<Communicator>}};
}

std::shared_ptr<RankRuntime> make_rank_runtime(
    const RankGroup& group, int num_experts, int top_k, int threads, const std::string& dispatcher,
    int64_t max_tokens, const std::optional<ParallelLayout>& layout,
    std::optional<double> row_budget, bool same_tokens, const std::string& balancer,
    const std::string& cost, int redundant, std::optional<Placement> placement, bool share_openmp,
    bool weight_on_input, const std::string& left) {
  const auto make = [&](RankRuntimeOptions options) {
    return new RankRuntime(group.comm, num_experts, top_k, std::move(options));
  };
  return {make({.threads = threads,
                .dispatcher = dispatcher,
                .max_tokens = max_tokens,
                .row_budget = row_budget,
                .layout = layout,
                .share_openmp = share_openmp,
                .same_tokens = same_tokens,
                .balancer = balancer,
                .cost = cost,
                .weights = weight_use(weight_on_input, left),
                .redundant = redundant,
                .placement = std::move(placement),
                .version = TRIMTAB_VERSION}),
          delete_without_gil<RankRuntime>};
}

std::vector<std::vector<int32_t>> slots_by_layer(const RankRuntime& runtime) {
  const Placement& placement = runtime.placement();
  std::vector<std::vector<int32_t>> layers;
  for (int l = 0; l < placement.num_layers(); ++l) {
    const std::span<const int32_t> slots = placement.logical(l);
    layers.emplace_back(slots.begin(), slots.end());
  }
  return layers;
}

using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

}  // namespace

void bind_rank_runtime(nb::module_& m) {
  m.def("host_id", &host_id,
        "Which host this process is on, as text of at most 127 bytes: processes where it is equal "
        "share memory.");
  nb::class_<RankGroup>(m, "RankGroup", "Ranks that are processes. Those of a host share memory.")
      .def(nb::new_(&make_group), "rank"_a, "exchange"_a, "timeout"_a = 60.0,
           "streams"_a = nb::none(),
           R"(This process's end of the group. Collective: all ranks make theirs at the same time.

rank: the number of this process, 0, 1, ...
exchange: called a few times with bytes, as many on every rank; returns those of all ranks, one
after the other, in the order of their numbers.
timeout: the longest that a rank waits for its peers in one operation, in seconds.
streams: how bytes travel between hosts; an object with send(rank, view) and receive(rank, view),
which are called with a memoryview of bytes in threads of their own, one for each rank of another
host and each of the two. Bytes arrive in order; receive() fills its view, of the length that the
peer sends. Both block without a limit of time, with the GIL released, and raise an exception when
the peer has gone. None: all ranks are on one host.
Raises RuntimeError where ranks do not share memory and there are no streams, ValueError for numbers
that can't be.)")
      .def_prop_ro("rank", [](const RankGroup& group) { return group.comm->rank(); })
      .def_prop_ro("size", [](const RankGroup& group) { return group.comm->size(); })
      .def(
          "barrier", [](RankGroup& group) { group.comm->barrier(); }, WithoutGil(),
          "Returns once every rank has called it. CommError when a peer is lost or late.")
      .def(
          "abort",
          [](RankGroup& group, const std::string& reason) { group.comm->abort(reason.c_str()); },
          "reason"_a, WithoutGil(), "Tells all peers that this rank has failed, and why.");

  nb::class_<RankRuntime>(m, "RankRuntime",
                          R"(The experts of a model's layers over ranks that are processes.

Each process makes one with the group, adds its own experts layer by layer, and calls start(). Every
rank then makes the same calls of forward(), each with its own tokens, or all with the same ones.
The output of a token does not depend on ranks or on where its experts are. With a balancer, experts
move between the ranks while they serve.)")
      .def(nb::new_(&make_rank_runtime), "group"_a, "num_experts"_a, "top_k"_a, nb::kw_only(),
           "threads"_a = 1, "dispatcher"_a = "auto", "max_tokens"_a = 2048, "layout"_a = nb::none(),
           "row_budget"_a = nb::none(), "same_tokens"_a = false, "balancer"_a = "", "cost"_a = "",
           "redundant"_a = 0, "placement"_a = nb::none(), "share_openmp"_a = true,
           "weight_on_input"_a = false, "left"_a = "weight_and_sum",
           R"(num_experts: of all ranks, which must divide them.
top_k: the number of experts of a token. threads: those of this rank.
dispatcher: a name (docs/dispatch.md) or "auto".
max_tokens: the most tokens of one call on this rank.
layout: a ParallelLayout, the same on every rank. Ranks of a dp group bring the same tokens, and
each gets their whole output; without ep a rank adds its part of all experts. None: each rank has
tokens of its own.
row_budget: as MoeRuntime's, of max_tokens on every rank; the same on every rank.
same_tokens: all ranks bring the same tokens. Each takes an even share through the layer, and the
other rows of its output are zero: summed over the ranks, outputs are whole. Without a layout.
balancer: settings as JSON (docs/live.md); "": experts stay where they are.
cost: what an expert takes for a number of rows: "measure" (rank 0 does, in 0.05 s, for all),
"rows", or a file that `trimtab bench experts --cost-out` wrote. Plans are then made in time, and
the balancer's split rule is "time" unless its settings name another.
redundant: slots of all ranks beyond one for each expert.
placement: a Placement of all layers that the ranks begin with, which says how many slots there are
(redundant is not heeded); None: experts in order. Experts still are added as without it, and
start() brings them to where it says. ValueError for what does not fit.
weight_on_input, left: as MoeRuntime's, the same on every rank. With a balancer or a placement left
is "weight_and_sum".)")
      .def("add_layer", &RankRuntime::add_layer, "weights"_a, WithoutGil(),
           "Adds this rank's experts of the next layer; returns the layer's number.")
      .def("start", &RankRuntime::start, WithoutGil(),
           "Collective, after the last add_layer(). ValueError on every rank where ranks have "
           "other layers, settings or versions; the text says which.")
      .def(
          "forward",
          [](RankRuntime& runtime, int layer, const Array& x, const Array& ids,
             const Contiguous<float>& weights, const OutArray& out, bool counts) {
            const RoutedTokens call = routed_tokens(x, ids, weights, out, runtime.top_k());
            const nb::gil_scoped_release release;
            runtime.forward(layer, call, counts);
          },
          "layer"_a, "x"_a.noconvert(), "ids"_a.noconvert(), "weights"_a.noconvert(),
          "out"_a.noconvert(), "counts"_a = true,
          R"(As MoeRuntime.forward(), of tokens of this rank. Collective.

counts: are these tokens load for the balancer? False for padding and trial runs. A call of layer 0
begins a step. Raises CommError when a peer is lost or late; then no call works any more.)")
      .def_prop_ro("num_layers", &RankRuntime::num_layers)
      .def_prop_ro("layout", [](const RankRuntime& runtime) { return runtime.layout(); })
      .def_prop_ro("dispatcher", &RankRuntime::dispatcher,
                   "Its name, once start() has been called.")
      .def_prop_ro("row_budget", &RankRuntime::row_budget,
                   "The most rows that this rank's experts get at once, once start() has been "
                   "called; 0: no budget.")
      .def_prop_ro(
          "split", [](const RankRuntime& runtime) { return std::string(name(runtime.split())); },
          "The rule that shares tokens out over replicas.")
      .def_prop_ro(
          "cost",
          [](const RankRuntime& runtime) -> std::optional<CostModel> {
            if (runtime.cost() == nullptr) return std::nullopt;
            return *runtime.cost();
          },
          "The CostModel in use, after start(); None without `cost`.")
      .def_prop_ro("steps", &RankRuntime::steps, "Steps that have begun.")
      .def_prop_ro("layers_switched", &RankRuntime::layers_switched,
                   "Layers that have got a new placement, by now.")
      .def_prop_ro("nbytes", &RankRuntime::weight_bytes,
                   "Bytes of this rank's experts, with the balancer's spares.")
      .def("placement", &slots_by_layer,
           "[layers][slots of all ranks] the expert in each slot now.")
      .def(
          "take_load",
          [](RankRuntime& runtime) {
            const auto layers = static_cast<size_t>(runtime.num_layers());
            const auto experts = static_cast<size_t>(runtime.num_experts());
            return array_of(runtime.take_load(), {layers, experts});
          },
          "int64 [layers, experts] the rows that this rank's experts have got since the last call "
          "of "
          "this. Summed over the ranks it is the load.")
      .def("metrics", &RankRuntime::metrics,
           "The balancer's metrics as text for Prometheus, complete on rank 0.");
}

}  // namespace trimtab::python
