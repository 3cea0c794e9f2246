# SPDX-License-Identifier: Apache-2.0
"""The experts of Hugging Face models, run by Trimtab.

    import trimtab.transformers
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-30B-A3B", dtype=torch.bfloat16)
    print(trimtab.transformers.enable(model, ranks=2))

or, with configure() for the options, `from_pretrained(..., experts_implementation="trimtab")`: then each layer's weights
are packed the first time that it is used. Importing this module registers that name.

The router stays the model's own. Inference on CPUs only. Experts that Trimtab can't run are left to transformers, and
the report says why. Needs a transformers release that looks experts implementations up in ALL_EXPERTS_FUNCTIONS; with
one that has a fixed list, the import is an ImportError.
"""

import logging
import os
import weakref
from dataclasses import dataclass, field, replace

import torch
import transformers
from transformers import PreTrainedModel

from ._core import ExpertWeights, MoeRuntime
from ._gates import find_gate
from .balancer import Balancer

__all__ = ["NAME", "Options", "Report", "configure", "enable"]

NAME = "trimtab"
_logger = logging.getLogger("trimtab.transformers")

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as error:
    raise ImportError(
        f"transformers {transformers.__version__} has no ALL_EXPERTS_FUNCTIONS, by which experts implementations are "
        "registered; 5.24 is known to work"
    ) from error


@dataclass(frozen=True)
class Options:
    """How experts are run.

    ranks: parts that each layer's experts are divided into, a rank each; None: one for each NUMA node.
    threads: of each rank; None: torch.get_num_threads() / ranks, so that Trimtab and torch use the same threads.
    quantization: None keeps the precision that the weights have; else a format such as "w8a8", "w4a8", "mxfp8".
    dispatcher: a name of docs/dispatch.md, or "auto".
    eplb: None for experts in order; "dynamic", or a dict of trimtab.Balancer's settings, for experts that move while the
        model serves; or a placement that stays: a trimtab.Placement with as many slots on each rank, or
        array-like [MoE layers, slots] of logical experts, the slots of rank r being those from r * (slots / ranks) on.
    max_tokens: of one pass; longer prompts take several. Memory for activations grows with it.
    free_originals: give the memory of the packed tensors back: they become meta tensors. False keeps both.
    """

    ranks: int | None = None
    threads: int | None = None
    quantization: str | None = None
    dispatcher: str = "auto"
    eplb: object = None
    max_tokens: int = 2048
    free_originals: bool = True

    def resolved(self):
        ranks = self.ranks or min(_numa_nodes(), torch.get_num_threads())
        return replace(self, ranks=ranks, threads=self.threads or max(1, torch.get_num_threads() // ranks))


def _numa_nodes():
    try:
        names = os.listdir("/sys/devices/system/node")
        return sum(name.startswith("node") and name[4:].isdigit() for name in names) or 1
    except OSError:
        return 1


class _Group:
    """Layers of one model that are alike, and so share a runtime."""

    def __init__(self, options):
        self.options = options
        self.layers = []
        self.runtimes = {}  # by top_k; one as a rule
        self.balancers = {}  # likewise, with eplb="dynamic", from the second step on
        self.stepped = set()  # top_k of those that have begun a step

    def add(self, weights):
        self.layers.append(weights)
        for runtime in self.runtimes.values():
            runtime.add_layer(weights)
        return len(self.layers) - 1

    def before(self, layer, top_k):
        """What is to be done before a layer's call: the first layer begins a step."""
        eplb = self.options.eplb
        if layer != 0 or not _is_dynamic(eplb):
            return
        if top_k in self.balancers:
            self.balancers[top_k].step()
        elif top_k in self.stepped:  # now all layers are there, also those that are packed when they are first used
            self.balancers[top_k] = Balancer(self.runtimes[top_k], **(eplb if isinstance(eplb, dict) else {}))
        self.stepped.add(top_k)

    def runtime(self, top_k):
        runtime = self.runtimes.get(top_k)
        if runtime is None:
            o = self.options
            runtime = MoeRuntime(
                self.layers, top_k, ranks=o.ranks, threads=o.threads, dispatcher=o.dispatcher, max_tokens=o.max_tokens
            )
            if o.eplb is not None and not _is_dynamic(o.eplb):
                for layer, row in enumerate(_rows(o.eplb, [w.num_experts for w in self.layers], o.ranks)):
                    runtime.place(layer, row)
            self.runtimes[top_k] = runtime
        return runtime


def _is_dynamic(eplb):
    return isinstance(eplb, (str, dict))


def _rows(eplb, experts, ranks):
    """The placement of each layer, checked. experts: [layers] how many each has."""
    eplb = getattr(eplb, "logical", eplb)
    rows = eplb.tolist() if hasattr(eplb, "tolist") else [list(row) for row in eplb]
    if len(rows) != len(experts):
        raise ValueError(f"eplb places {len(rows)} layers, the model has {len(experts)} that Trimtab runs")
    for layer, (row, num_experts) in enumerate(zip(rows, experts)):
        if set(row) != set(range(num_experts)) or len(row) % ranks != 0:
            raise ValueError(
                f"eplb, layer {layer}: {len(row)} slots hold {len(set(row))} experts; wanted a multiple of {ranks} ranks, "
                f"and each of experts 0 to {num_experts - 1}"
            )
    return rows


def _check(options):
    """Raises the ValueError that packing or running would raise later, when originals are gone already."""
    one = torch.ones(1, 64, 32)
    weights = ExpertWeights(one, one[:, :32], format=options.quantization or "f32")
    runtime = MoeRuntime(
        [weights], 1, ranks=options.ranks, threads=options.threads, dispatcher=options.dispatcher,
        max_tokens=options.max_tokens,
    )
    if isinstance(options.eplb, dict):
        try:
            Balancer(runtime, **options.eplb)
        except TypeError as error:
            raise ValueError(f"eplb: {error}") from None


class _Bound:
    """What a module of experts has once its weights are packed. Copies of the module share it."""

    def __init__(self, group, layer):
        self.group = group
        self.layer = layer

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("a model whose experts are packed by Trimtab can't be pickled; pickle it before enable()")


@dataclass(frozen=True)
class _Refused:
    reason: str


@dataclass
class Report:
    """What enable() has done. str() says it in a few lines."""

    options: Options
    layers: list = field(default_factory=list)  # names of the modules that Trimtab runs
    left: dict = field(default_factory=dict)  # names of those left to transformers: why
    packed_bytes: int = 0
    original_bytes: int = 0
    groups: list = field(default_factory=list)

    @property
    def runtimes(self):
        """The MoeRuntimes in use by now: load() of each has the tokens that experts have had."""
        return [runtime for group in self.groups for runtime in group.runtimes.values()]

    @property
    def balancers(self):
        """With eplb="dynamic" the Balancer of each runtime in use by now."""
        return [balancer for group in self.groups for balancer in group.balancers.values()]

    def __str__(self):
        o = self.options
        originals = "freed" if o.free_originals else "kept beside them"
        lines = [f"Trimtab runs the experts of {len(self.layers)} layers on {o.ranks} x {o.threads} threads"]
        for group in self.groups:
            like = group.layers[0]
            lines.append(
                f"  {len(group.layers)} layers of {like.num_experts} experts, {like.hidden_size} -> "
                f"{like.intermediate_size}, {like.format}"
            )
        lines.append(
            f"  holds {self.packed_bytes / 2**30:.2f} GiB of packed weights; the originals, "
            f"{self.original_bytes / 2**30:.2f} GiB, are {originals}"
        )
        for name, reason in self.left.items():
            lines.append(f"  left to transformers: {name}: {reason}")
        return "\n".join(lines)


_TENSORS = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_defaults = Options()


def configure(**options):
    """Sets the Options for experts_implementation="trimtab", and what enable() takes where it is not told otherwise.

    ValueError: an option that is not there."""
    global _defaults
    _defaults = _replace(_defaults, options)


def _replace(options, changes):
    try:
        return replace(options, **changes)
    except TypeError:
        unknown = sorted(set(changes) - set(Options.__dataclass_fields__))
        raise ValueError(f"no option {', '.join(unknown)}; there are {', '.join(Options.__dataclass_fields__)}") from None


def enable(model, **options):
    """Lets Trimtab run the experts of a transformers model, in place. Returns a Report.

    options: those of Options, such as ranks=2, quantization="w8a8". The experts' tensors are packed layer by layer and
    then given back, so that at no time more than one layer is there twice. Raises ValueError for options that do not fit
    the model, TypeError for what is no transformers model. A model without experts of the kind that transformers
    dispatches by name gets a Report with no layers.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"enable() wants a transformers model, not {type(model).__name__}")
    chosen = _replace(_defaults, options).resolved()
    _check(chosen)
    report = Report(chosen)
    groups = {}
    modules = list(_experts_modules(model))
    if isinstance(chosen.eplb, str) and chosen.eplb != "dynamic":
        raise ValueError(f'eplb is None, "dynamic", a dict of settings or a placement, not "{chosen.eplb}"')
    if chosen.eplb is not None and not _is_dynamic(chosen.eplb):
        ours = [module for _, module in modules if _gate_or_reason(module)[1] is None]
        _rows(chosen.eplb, [module.num_experts for module in ours], chosen.ranks)
        if len({(module.num_experts, module.down_proj.shape, module.down_proj.dtype) for module in ours}) > 1:
            raise ValueError("eplb needs layers that are alike; those of this model differ in sizes or dtype")
    for name, module in modules:
        bound = _bind(module, chosen, groups)
        if isinstance(bound, _Refused):
            report.left[name] = bound.reason
            continue
        weights = bound.group.layers[bound.layer]
        report.layers.append(name)
        report.packed_bytes += weights.nbytes
        report.original_bytes += bound.original_bytes
    report.groups = list(groups.values())
    if report.layers:
        model.set_experts_implementation(NAME)
    return report


def _experts_modules(model):
    """The modules that transformers dispatches by the name of an implementation, and their names."""
    for name, module in model.named_modules():
        if all(hasattr(module, flag) for flag in ("has_gate", "has_bias", "is_transposed", "num_experts", "config")):
            yield name, module


def _refusal(module):
    """Why Trimtab can't run this module, its gate apart, or None."""
    if not module.has_gate:
        return "its experts have no gate"
    if getattr(module, "has_post_expert_norm", False):
        return "its experts end in a norm"
    if getattr(module, "_is_expert_parallel", False):
        return "its experts are sharded over processes by transformers"
    for name in _TENSORS[: 4 if module.has_bias else 2]:
        tensor = getattr(module, name, None)
        if tensor is None or tensor.dim() != (2 if name.endswith("bias") else 3):
            return f"it has no {name} of all experts in one tensor"
        if type(tensor) not in (torch.nn.Parameter, torch.Tensor):
            return f"{name} is a {type(tensor).__name__}"
        if tensor.device.type != "cpu":
            return f"{name} is on {tensor.device}"
        if tensor.dtype not in _FORMATS:
            return f"{name} is {tensor.dtype}"
    return None


def _gate_or_reason(module):
    """The module's Gate and None, or None and why Trimtab can't run it."""
    reason = _refusal(module)
    gate = find_gate(module) if reason is None else None
    if gate is None:
        return None, reason or f"{type(module).__name__}._apply_gate is no activation of Trimtab's"
    return gate, None


@torch.no_grad()
def _bind(module, options, groups):
    """Packs the module's experts, or finds why not; the module remembers. groups: of the model, by what is alike."""
    bound = module.__dict__.get("_trimtab")
    if isinstance(bound, _Bound):
        raise ValueError("Trimtab runs this model's experts already; load it anew to change the options")
    gate, reason = _gate_or_reason(module)
    if reason is not None:
        module._trimtab = _Refused(reason)
        return module._trimtab
    tensors = [getattr(module, name).detach() if i < 2 or module.has_bias else None for i, name in enumerate(_TENSORS)]
    weights = ExpertWeights(
        tensors[0],
        tensors[1],
        gate_up_bias=tensors[2],
        down_bias=tensors[3],
        format=options.quantization or _FORMATS[tensors[0].dtype],
        activation=gate.activation,
        transposed=module.is_transposed,
        interleaved=gate.interleaved,
        threads=options.ranks * options.threads,
        **gate.parameters,
    )
    key = (weights.num_experts, weights.hidden_size, weights.format)
    group = groups.setdefault(key, _Group(options))
    bound = module._trimtab = _Bound(group, group.add(weights))
    bound.original_bytes = sum(t.nbytes for t in tensors if t is not None)
    if options.free_originals:
        for name, tensor in zip(_TENSORS, tensors):
            if tensor is not None:
                setattr(module, name, torch.nn.Parameter(tensor.to("meta"), requires_grad=False))
    return bound


# Of models that come with experts_implementation="trimtab": groups by the identity of the configuration, which a
# model's modules share. Modules keep their groups alive.
_lazy_groups = weakref.WeakValueDictionary()


class _GroupsOf:
    """The groups of one configuration, for _bind()."""

    def __init__(self, config):
        self.config = id(config)

    def setdefault(self, key, group):
        return _lazy_groups.setdefault((self.config, *key), group)


def _bind_first_time(module):
    bound = _bind(module, _defaults.resolved(), _GroupsOf(module.config))
    if isinstance(bound, _Refused):
        _logger.warning("%s is left to transformers: %s", type(module).__name__, bound.reason)
    return bound


class _Forward(torch.autograd.Function):
    """So that a backward pass fails, instead of taking the experts for a constant."""

    @staticmethod
    def forward(ctx, hidden_states, top_k_index, top_k_weights, bound):
        return _run(hidden_states, top_k_index, top_k_weights, bound)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("Trimtab's experts have no backward pass: they are for inference")


def _run(hidden_states, top_k_index, top_k_weights, bound):
    x = hidden_states.detach()
    if x.dtype == torch.float16:
        x = x.float()
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    ids = top_k_index.detach().to(torch.int64).contiguous()
    weights = top_k_weights.detach().to(torch.float32).contiguous()
    runtime = bound.group.runtime(ids.shape[-1])
    bound.group.before(bound.layer, ids.shape[-1])
    runtime.forward(bound.layer, x, ids, weights, out)
    return out.to(hidden_states.dtype)


@torch.compiler.disable
def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """The experts of a module, for ALL_EXPERTS_FUNCTIONS: hidden_states [tokens, hidden], top_k_index and top_k_weights
    [tokens, top_k]; returns [tokens, hidden]."""
    bound = self.__dict__.get("_trimtab") or _bind_first_time(self)
    if isinstance(bound, _Refused):
        return type(self).forward.__wrapped__(self, hidden_states, top_k_index, top_k_weights)
    if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
        return _Forward.apply(hidden_states, top_k_index, top_k_weights, bound)
    return _run(hidden_states, top_k_index, top_k_weights, bound)


def _register():
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    try:
        PreTrainedModel.get_correct_experts_implementation(None, NAME)
    except Exception as error:
        raise ImportError(
            f"transformers {transformers.__version__} does not take experts implementations that are registered in "
            "ALL_EXPERTS_FUNCTIONS; 5.24 does"
        ) from error


_register()
