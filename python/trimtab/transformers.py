# SPDX-License-Identifier: Apache-2.0
"""The experts of Hugging Face models, run by Trimtab.

    import trimtab.transformers
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-30B-A3B", dtype=torch.bfloat16)
    print(trimtab.transformers.enable(model, ranks=2))

or, with configure() for the options, `from_pretrained(..., experts_implementation="trimtab")`: then
each layer's weights are packed the first time that it is used. Importing this module registers that
name.

The router stays the model's own. Inference on CPUs only. Experts that Trimtab can't run are left to
transformers, and the report says why. Needs a transformers release that looks experts
implementations up in ALL_EXPERTS_FUNCTIONS; with one that has a fixed list, the import is an
ImportError.
"""

import logging
import weakref
from collections import Counter
from dataclasses import dataclass, field

import torch
import transformers
from transformers import PreTrainedModel

from ._core import ExpertWeights
from ._layer_group import LayerGroup
from ._marks import Marks
from ._moe_modules import (
    FORMATS,
    TENSORS,
    experts_that_are_not_dispatched,
    gate_or_reason,
    tensors_of,
)
from ._moe_modules import experts_modules as _experts_modules
from ._options import Options, check_options, is_dynamic, placement_rows, replaced

__all__ = ["NAME", "Options", "Report", "configure", "enable"]

NAME = "trimtab"
_logger = logging.getLogger("trimtab.transformers")

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as error:
    raise ImportError(
        f"transformers {transformers.__version__} has no ALL_EXPERTS_FUNCTIONS, by which experts "
        "implementations are registered; 5.24 is known to work"
    ) from error


class _Bound:
    """What a module of experts has once its weights are packed. Copies of the module share it."""

    def __init__(self, group, layer, name):
        self.group = group
        self.layer = layer
        self.name = name

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(
            "a model whose experts are packed by Trimtab can't be pickled; pickle it before "
            "enable()"
        )


@dataclass(frozen=True)
class _Refused:
    """What a module has that Trimtab does not run: why, and the implementation that runs it
    instead."""

    reason: str
    instead: str = "eager"


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
        lines = [
            f"Trimtab runs the experts of {len(self.layers)} layers on {o.ranks} x {o.threads} "
            "threads"
        ]
        for group in self.groups:
            like = group.layers[0]
            lines.append(
                f"  {len(group.layers)} layers of {like.num_experts} experts, {like.hidden_size} "
                f"-> {like.intermediate_size}, {like.format}"
            )
        lines.append(
            f"  holds {self.packed_bytes / 2**30:.2f} GiB of packed weights; the originals, "
            f"{self.original_bytes / 2**30:.2f} GiB, are {originals}"
        )
        for name, reason in self.left.items():
            lines.append(f"  left to transformers: {name}: {reason}")
        return "\n".join(lines)


_defaults = Options()


def configure(**options):
    """Sets the Options for experts_implementation="trimtab", and what enable() takes where it is
    not told otherwise.

    ValueError: an option that is not there, or a value that it can't have."""
    global _defaults
    changed = replaced(_defaults, options)
    check_options(changed.resolved())
    _defaults = changed


def enable(model, **options):
    """Lets Trimtab run the experts of a transformers model, in place. Returns a Report.

    options: those of Options, such as ranks=2, quantization="w8a8".

    The experts' tensors are packed layer by layer and then given back, so that at no time more than
    one layer is there twice. A layer whose weights can't be packed stays with transformers, and the
    report says why; whatever is raised, the model can still be used. Raises ValueError for options
    that do not fit the model, TypeError for what is no transformers model. A model without experts
    of the kind that transformers dispatches by name gets a Report with no layers.

    After the weights of a model have changed, which a call of the model answers with RuntimeError,
    enable() packs the new ones, where the originals were not given back.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"enable() wants a transformers model, not {type(model).__name__}")
    chosen = replaced(_defaults, options).resolved()
    check_options(chosen)
    report = Report(chosen, left=dict(experts_that_are_not_dispatched(model)))
    modules = dict(_experts_modules(model))
    _unbind_changed(modules)
    reasons = {name: gate_or_reason(module)[1] for name, module in modules.items()}
    before = {name: module.config._experts_implementation for name, module in modules.items()}
    ours = {name: module for name, module in modules.items() if reasons[name] is None}
    rows = _rows_of(chosen, ours)
    if ours:
        model.set_experts_implementation(NAME)
    for name, module in ours.items():
        if module.config._experts_implementation != NAME:
            reasons[name] = "its configuration takes no experts_implementation"
    groups = {}
    shared = _Shared(ours.values())
    waiting = dict(modules)
    try:
        for name, module in modules.items():
            if reasons[name] is None:
                bound = _bind(module, chosen, groups, name, before[name], rows.get(name), shared)
            else:
                bound = module._trimtab = _Refused(reasons[name], _other_than_ours(before[name]))
            del waiting[name]
            if isinstance(bound, _Refused):
                report.left[name] = bound.reason
                continue
            report.layers.append(name)
            report.packed_bytes += bound.packed_bytes
            report.original_bytes += bound.original_bytes
    except BaseException:
        for name, module in waiting.items():  # the model stays of use
            module._trimtab = _Refused(
                "enable() did not come to it", _other_than_ours(before[name])
            )
        raise
    report.groups = list(groups.values())
    return report


def _other_than_ours(implementation):
    return "eager" if implementation in (None, NAME) else implementation


def _unbind_changed(modules):
    """Lets enable() pack weights again that have changed. ValueError where it has packed them
    already, or can't."""
    bound = {
        name: m for name, m in modules.items() if isinstance(m.__dict__.get("_trimtab"), _Bound)
    }
    if not bound:
        return
    changed = {name: m._trimtab_marks.changed(m) for name, m in bound.items()}
    if not any(changed.values()):
        raise ValueError(
            "Trimtab runs this model's experts already; load it anew to change the options"
        )
    for name, module in bound.items():
        freed = [
            tensor for tensor in tensors_of(module) if getattr(module, tensor).device.type == "meta"
        ]
        if freed:
            raise ValueError(
                f"{name}: {freed[0]} was given back when its weights were packed, so that they "
                "can't be packed again; load the model anew"
            )
    for module in bound.values():
        del module._trimtab, module._trimtab_marks


def _rows_of(options, modules):
    """With a placement: its row for each of the modules that are to be packed, by their names. Else
    nothing."""
    if options.eplb is None or is_dynamic(options.eplb):
        return {}
    rows = placement_rows(
        options.eplb, [module.num_experts for module in modules.values()], options.ranks
    )
    if len({(m.num_experts, m.down_proj.shape, m.down_proj.dtype) for m in modules.values()}) > 1:
        raise ValueError(
            "eplb needs layers that are alike; those of this model differ in sizes or dtype"
        )
    return dict(zip(modules, rows))


class _Shared:
    """Tensors that several modules have in common are packed once."""

    def __init__(self, modules):
        self.count = Counter(self.key(module) for module in modules)
        # By key: the packed weights, and the tensors, which keep their identity while they live.
        self.packed = {}

    @staticmethod
    def key(module):
        return tuple(id(getattr(module, name)) for name in tensors_of(module))


@torch.no_grad()
def _bind(module, options, groups, name, before, row=None, shared=None):
    """Packs the module's experts, or finds why not; the module remembers. groups: of the model, by
    what is alike.
    name: for messages. before: the implementation that ran it, or would have. row: its slots in a
        placement.
    """
    gate, reason = gate_or_reason(module)
    weights = None
    if reason is None:
        tensors = {n: getattr(module, n) for n in tensors_of(module)}
        key = shared and shared.key(module)
        if shared and key in shared.packed:
            weights = shared.packed[key][0]
        else:
            try:
                weights = _pack(module, gate, options, {n: t.detach() for n, t in tensors.items()})
            except ValueError as error:
                reason = f"its weights can't be packed: {error}"
    if reason is not None:
        module._trimtab = _Refused(reason, _other_than_ours(before))
        return module._trimtab
    alike = (weights.num_experts, weights.hidden_size, weights.format)
    group = groups.setdefault(alike, LayerGroup(options))
    bound = _Bound(group, group.add(weights, row), name)
    first = not shared or key not in shared.packed
    bound.packed_bytes = weights.nbytes if first else 0
    bound.original_bytes = sum(t.nbytes for t in tensors.values()) if first else 0
    if shared and shared.count[key] > 1:
        shared.packed[key] = (weights, tensors)
    if options.free_originals:
        for n, tensor in tensors.items():
            setattr(module, n, torch.nn.Parameter(tensor.detach().to("meta"), requires_grad=False))
        module.register_load_state_dict_pre_hook(_refuse_loading)
        module.register_forward_pre_hook(_refuse_others)
    module._trimtab_marks = Marks({n: getattr(module, n) for n in tensors})
    module._trimtab = bound
    return bound


def _pack(module, gate, options, tensors):
    gate_up, down = (tensors[n] for n in TENSORS[:2])
    return ExpertWeights(
        gate_up,
        down,
        gate_up_bias=tensors.get(TENSORS[2]),
        down_bias=tensors.get(TENSORS[3]),
        format=FORMATS[gate_up.dtype] if options.quantization is None else options.quantization,
        activation=gate.activation,
        transposed=module.is_transposed,
        interleaved=gate.interleaved,
        threads=options.ranks * options.threads,
        **gate.parameters,
    )


def _refuse_loading(
    module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
):
    """Before load_state_dict() of a module whose originals were given back: torch would drop the
    new weights."""
    names = [
        n
        for n in tensors_of(module)
        if prefix + n in state_dict and getattr(module, n).device.type == "meta"
    ]
    if names and not local_metadata.get("assign_to_params_buffers", False):
        error_msgs.append(
            f"{prefix}{names[0]} was given back when Trimtab packed its weights, so that new ones "
            "have no place; load the model anew, or enable it with free_originals=False"
        )


def _refuse_others(module, args):
    """Before a call by another experts implementation of a module whose originals were given
    back."""
    implementation = module.config._experts_implementation
    freed = any(getattr(module, n).device.type == "meta" for n in tensors_of(module))
    if implementation != NAME and freed:
        raise RuntimeError(
            f'the experts implementation "{implementation}" has no weights: they were given back '
            "when Trimtab packed "
            "them; load the model anew, or enable it with free_originals=False"
        )


# The groups of models that come with experts_implementation="trimtab", by the identity of the
# configuration, which a model's modules share. Modules keep their groups alive.
_lazy_groups = weakref.WeakValueDictionary()


class _GroupsOf:
    """The groups of one configuration, for _bind()."""

    def __init__(self, config):
        self.config = id(config)

    def setdefault(self, key, group):
        return _lazy_groups.setdefault((self.config, *key), group)


def _bind_first_time(module):
    if _defaults.eplb is not None and not is_dynamic(_defaults.eplb):
        raise ValueError(
            "a placement is put into effect by enable(model): here, layers are packed one at a time"
        )
    bound = _bind(
        module, _defaults.resolved(), _GroupsOf(module.config), type(module).__name__, None
    )
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
    """The experts of a module, for ALL_EXPERTS_FUNCTIONS: hidden_states [tokens, hidden],
    top_k_index and top_k_weights [tokens, top_k]; returns [tokens, hidden]."""
    bound = self.__dict__.get("_trimtab") or _bind_first_time(self)
    if isinstance(bound, _Refused):
        original = type(self).forward.__wrapped__
        forward = ALL_EXPERTS_FUNCTIONS.get_interface(bound.instead, original)
        return forward(self, hidden_states, top_k_index, top_k_weights)
    if changed := self._trimtab_marks.changed(self):
        raise RuntimeError(
            f"{bound.name}: {changed} has changed since Trimtab packed it; call "
            "trimtab.transformers.enable(model) again, or load the model anew"
        )
    if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
        return _Forward.apply(hidden_states, top_k_index, top_k_weights, bound)
    return _run(hidden_states, top_k_index, top_k_weights, bound)


def _register():
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    try:
        PreTrainedModel.get_correct_experts_implementation(None, NAME)
    except Exception as error:
        raise ImportError(
            f"transformers {transformers.__version__} does not take experts implementations that "
            "are registered in ALL_EXPERTS_FUNCTIONS; 5.24 does"
        ) from error


_register()
