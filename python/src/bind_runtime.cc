// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>

#include "arrays.h"
#include "base/cat.h"
#include "bindings.h"
#include "moe_runtime.h"
#include "routed_arrays.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

using namespace nb::literals;

// By the names that transformers' configurations have.
Activation activation(const std::string& name, float alpha, float limit) {
  constexpr std::pair<const char*, ActivationKind> kNames[] = {
      {"silu", ActivationKind::kSilu},
      {"gelu", ActivationKind::kGelu},
      {"gelu_tanh", ActivationKind::kGeluTanh},
      {"swiglu_clamp", ActivationKind::kSwigluClamp}};
  for (const auto& [known, kind] : kNames) {
    if (name == known) return {.kind = kind, .alpha = alpha, .limit = limit};
  }
  throw InvalidArgument(
      cat("activation \"", name, "\" is not known; there are silu, gelu, gelu_tanh, swiglu_clamp"));
}

template <class View>
View stacked(const std::optional<Array>& array, const char* name) {
  View view;
  if (!array) return view;
  constexpr size_t kDims = std::size(decltype(View::shape){});
  if (array->ndim() != kDims)
    throw InvalidArgument(cat(name, " has ", array->ndim(), " dimensions, not ", kDims));
  view.data = static_cast<const std::byte*>(array->data());
  view.dtype = dtype_of_array(array->dtype(), name);
  for (size_t i = 0; i < kDims; ++i) {
    view.shape[i] = static_cast<int64_t>(array->shape(i));
    view.strides[i] = array->stride(i);
  }
  return view;
}

std::shared_ptr<ExpertTable> pack(const Array& gate_up, const Array& down,
                                  const std::optional<Array>& gate_up_bias,
                                  const std::optional<Array>& down_bias, const std::string& format,
                                  const std::string& activation_name, float alpha, float limit,
                                  bool transposed, bool interleaved, int threads, int parts,
                                  std::optional<int> part) {
  const ExpertArrays arrays{stacked<StackedMatrices>(gate_up, "gate_up"),
                            stacked<StackedMatrices>(down, "down"),
                            stacked<StackedVectors>(gate_up_bias, "gate_up_bias"),
                            stacked<StackedVectors>(down_bias, "down_bias"),
                            transposed,
                            interleaved};
  const Activation act = activation(activation_name, alpha, limit);
  const WeightFormat weights = parse_weight_format(format);
  if (part && *part < 0) throw InvalidArgument(cat("part ", *part, " of ", parts));
  const ExpertParts wanted{.parts = parts, .part = part.value_or(-1)};
  const nb::gil_scoped_release release;
  return std::make_shared<ExpertTable>(arrays, act, weights, threads, wanted);
}

std::shared_ptr<MoeRuntime> make_runtime(const std::vector<std::shared_ptr<ExpertTable>>& layers,
                                         int top_k, std::optional<int> ranks, int threads,
                                         const std::string& dispatcher, int64_t max_tokens,
                                         const std::optional<ParallelLayout>& layout,
                                         std::optional<double> row_budget, bool share_openmp,
                                         const std::optional<std::string>& split,
                                         const std::string& cost, bool weight_on_input,
                                         const std::string& left, double timeout) {
  if (layers.empty() || layers.front() == nullptr)
    throw InvalidArgument("a runtime needs at least one layer");
  const nb::gil_scoped_release release;
  auto runtime = std::make_shared<MoeRuntime>(
      *layers.front(), top_k,
      RuntimeOptions{.ranks = ranks.value_or(layout ? layout->ranks() : 1),
                     .threads = threads,
                     .layout = layout,
                     .dispatcher = dispatcher,
                     .max_tokens = max_tokens,
                     .row_budget = row_budget,
                     .share_openmp = share_openmp,
                     .split = split ? std::optional(parse_split_rule(*split)) : std::nullopt,
                     .cost = cost,
                     .weights = weight_use(weight_on_input, left),
                     .timeout = checked_timeout(timeout)});
  for (const auto& layer : layers) runtime->add_layer(layer);
  return runtime;
}

void forward(MoeRuntime& runtime, int layer, const Array& x, const Array& ids,
             const Contiguous<float>& weights, const OutArray& out) {
  const RoutedTokens call = routed_tokens(x, ids, weights, out, runtime.top_k());
  const nb::gil_scoped_release release;
  runtime.forward(layer, call, [] {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

// Methods that take the runtime's lock are called without the GIL, which the call that holds the
// lock may wait for.
using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

std::vector<int64_t> copy_of_load(const MoeRuntime& runtime) {
  const nb::gil_scoped_release release;
  return runtime.load();
}

using LoadArray = nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>;
LoadArray load(const MoeRuntime& runtime) {
  auto* const counts = new std::vector<int64_t>(copy_of_load(runtime));
  const nb::capsule owner(counts,
                          [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  const auto experts = static_cast<size_t>(runtime.num_experts());
  return LoadArray(counts->data(), {counts->size() / experts, experts}, owner);
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def("weight_formats", &weight_format_names,
        R"(The names of the formats in which experts can be kept.

In names that end in "-gN", N stands for the inputs that share a scale: any multiple of 8.)");
  nb::class_<ExpertTable>(m, "ExpertWeights",
                          R"(The experts of one layer, packed for the kernels. Immutable.

An expert is out = (act(x W_gate^T + b_gate) * (x W_up^T + b_up)) W_down^T + b_down. Arrays are read
where they are (numpy, torch, whatever has DLPack; float32, bfloat16 or float16; any strides) and
not needed afterwards.)")
      .def(nb::new_(&pack), "gate_up"_a.noconvert(), "down"_a.noconvert(), nb::kw_only(),
           "gate_up_bias"_a.noconvert() = nb::none(), "down_bias"_a.noconvert() = nb::none(),
           "format"_a = "bf16", "activation"_a = "silu", "alpha"_a = 1.702F, "limit"_a = 7.0F,
           "transposed"_a = false, "interleaved"_a = false, "threads"_a = 1, "parts"_a = 1,
           "part"_a = nb::none(),
           R"(Packs.

gate_up: [experts, 2 * intermediate, hidden], the rows of gate, then those of up; with interleaved,
the rows of gate and up take turns.
down: [experts, hidden, intermediate].
transposed: gate_up is [experts, hidden, 2 * intermediate] and down [experts, intermediate, hidden].
gate_up_bias: [experts, 2 * intermediate] and down_bias: [experts, hidden], or None.
format: one of trimtab.weight_formats() (docs/checkpoints.md).
parts: cut each expert's intermediate size into so many (ParallelLayout.expert_parts); part: keep
this one alone, None: all of them.
activation: "silu", "gelu", "gelu_tanh", or "swiglu_clamp" with alpha and limit (gpt-oss).
Raises ValueError for shapes and types that do not fit, and for weights that the format can't hold:
the error names the expert, the matrix and the element.)")
      .def_prop_ro("num_experts", &ExpertTable::num_experts)
      .def_prop_ro("hidden_size", &ExpertTable::hidden)
      .def_prop_ro("intermediate_size", &ExpertTable::intermediate)
      .def_prop_ro("parts", [](const ExpertTable& table) { return table.parts().parts; })
      .def_prop_ro(
          "part",
          [](const ExpertTable& table) {
            const int part = table.parts().part;
            return part < 0 ? std::optional<int>() : part;
          },
          "The part that is here; None: all of them.")
      .def_prop_ro("format", [](const ExpertTable& table) { return name(table.format()); })
      .def_prop_ro("nbytes", &ExpertTable::bytes, "Bytes that the packed weights take.");

  nb::class_<MoeRuntime>(
      m, "MoeRuntime", R"(The experts of a model's layers on ranks that are threads of this process.

Each rank holds a share of every layer's experts. A call deals its tokens to the ranks, brings them
to their experts and the results back; the output of a token does not depend on ranks, threads or
placement. Threads may share a runtime: calls run one after another. In the child of a fork every
call raises RuntimeError.)")
      .def(nb::new_(&make_runtime), "layers"_a, "top_k"_a, nb::kw_only(), "ranks"_a = nb::none(),
           "threads"_a = 1, "dispatcher"_a = "auto", "max_tokens"_a = 2048, "layout"_a = nb::none(),
           "row_budget"_a = nb::none(), "share_openmp"_a = true, "split"_a = nb::none(),
           "cost"_a = "", "weight_on_input"_a = false, "left"_a = "weight_and_sum",
           "timeout"_a = 60.0,
           R"(layers: list of ExpertWeights, all of the same sizes and format.

top_k: the number of experts of a token. ranks: the number of ranks; None: those of the layout, or
1. threads: those of each rank.
dispatcher: a name (docs/dispatch.md) or "auto".
max_tokens: the most tokens of one pass, over all ranks together. Longer calls take several passes,
between which Ctrl-C is heard. Memory is reserved for a pass, and taken as it is used.
layout: a ParallelLayout. None: whole experts, and each rank takes a slice of the tokens (tp =
ranks). Without ep the weights must have all layout.expert_parts parts. A call's tokens are those of
one caller, so dp is 1.
row_budget: a rank's experts get at most so many times the rows of level loads at once; a pass that
brings more takes further rounds, with the same bits. None: 1.5 where the dispatcher takes a
budget; 0: none.
share_openmp: run on the threads of the process's OpenMP runtime (torch's) where there is one,
instead of threads of the runtime's own.
split: the rule that shares tokens out over an expert's replicas: static, round_robin, split or
time. None: time with a cost, else static. cost: what an expert takes for a number of rows, which
time needs: "measure" (in 0.05 s), "rows", or a file that `trimtab bench experts --cost-out` wrote.
weight_on_input: weights multiply the experts' input instead of their output, as Llama 4 does it;
top_k is 1.
left: what experts leave to the combine, with the same bits: "weight_and_sum"; "sum", they apply the
weights themselves; "nothing", they also sum a token's picks and return a row for each token, which
takes a dispatcher that brings tokens whole (all_gather).
timeout: the longest that ranks wait for each other, in seconds.
Raises ValueError for what does not fit.)")
      .def("add_layer", &MoeRuntime::add_layer, "weights"_a, WithoutGil(),
           "Adds a layer; returns its number. ValueError: other sizes, or another format, than the "
           "first one's.")
      .def("forward", &forward, "layer"_a, "x"_a.noconvert(), "ids"_a.noconvert(),
           "weights"_a.noconvert(), "out"_a.noconvert(),
           R"(out[t] = sum over k of weights[t, k] * expert ids[t, k] (x[t]).

x: [tokens, hidden] and out: the same shape, in other memory; float32 or bfloat16. ids: int64 or
int32 [tokens, top_k]; an id below 0, or not below num_experts, stands for no expert. weights:
float32 [tokens, top_k]. Sums are in float32 and rounded once. Releases the GIL. Raises ValueError
before anything is done, RuntimeError when a rank fails.)")
      .def(
          "place",
          [](MoeRuntime& runtime, int layer, const std::vector<int32_t>& logical) {
            const nb::gil_scoped_release release;
            runtime.place(layer, logical);
          },
          "layer"_a, "physical_to_logical"_a,
          R"(From the next call on, slot s of the layer holds expert physical_to_logical[s].

The slots of rank r are those from r * (slots / ranks) on. An empty list stands for the experts in
order, as at the beginning. Nothing is copied: ranks share memory. Raises ValueError when ranks do
not divide slots, when an expert has no slot, for layouts without ep, and for replicas without
sp.)")
      .def("load", &load,
           "Tokens that each expert has had since reset_load(): int64 [layers, experts].")
      .def("reset_load", &MoeRuntime::reset_load, WithoutGil())
      .def_prop_ro("num_layers", &MoeRuntime::num_layers, WithoutGil())
      .def_prop_ro("num_experts", &MoeRuntime::num_experts)
      .def_prop_ro("hidden_size", &MoeRuntime::hidden)
      .def_prop_ro("top_k", &MoeRuntime::top_k)
      .def_prop_ro("format", [](const MoeRuntime& runtime) { return name(runtime.format()); })
      .def_prop_ro("ranks", [](const MoeRuntime& runtime) { return runtime.options().ranks; })
      .def_prop_ro("threads", [](const MoeRuntime& runtime) { return runtime.options().threads; })
      .def_prop_ro("thread_source", &MoeRuntime::threads, WithoutGil(),
                   "Whose threads the ranks are on: \"openmp\" or \"own\".")
      .def_prop_ro("dispatcher", &MoeRuntime::dispatcher)
      .def_prop_ro("layout", [](const MoeRuntime& runtime) { return runtime.layout(); })
      .def_prop_ro("row_budget", &MoeRuntime::row_budget,
                   "The most rows that a rank's experts get at once; 0: no budget.")
      .def_prop_ro(
          "split", [](const MoeRuntime& runtime) { return std::string(name(runtime.split())); },
          "The rule that shares tokens out over replicas.")
      .def_prop_ro(
          "cost",
          [](const MoeRuntime& runtime) -> std::optional<CostModel> {
            if (runtime.cost() == nullptr) return std::nullopt;
            return *runtime.cost();
          },
          "The CostModel in use; None without `cost`.")
      .def_prop_ro("nbytes", &MoeRuntime::weight_bytes, WithoutGil(),
                   "Bytes that the packed weights take.")
      .def_prop_ro("workspace_nbytes", &MoeRuntime::workspace_bytes, WithoutGil(),
                   "The most that calls have taken beside them.");
  m.def(
      "kernel_isa", [] { return std::string(kernel_isa()); },
      "The instruction set of the kernels: the best this CPU has, or what TRIMTAB_ISA names.");
}

}  // namespace trimtab::python
