# SPDX-License-Identifier: Apache-2.0
"""The experts of vLLM's MoE layers, run by Trimtab in vLLM's worker processes."""

from __future__ import annotations

import atexit
import functools
from multiprocessing import util

import torch

from .._core import ExpertWeights
from .._layer_group import LayerGroup
from .._moe_modules import FORMATS
from .._options import Options
from . import seams
from .flags import Flags
from .ranks import RankLayers, watch_ranks
from .recorder import Recorder

# vLLM's name of an activation -> Trimtab's, and whether the rows of gate and up take turns.
_ACTIVATIONS = {
    "silu": ("silu", False),
    "gelu": ("gelu", False),
    "gelu_tanh": ("gelu_tanh", False),
    "swigluoai": ("swiglu_clamp", True),  # alpha 1.702 and limit 7 in both
}

_groups = {}  # the layers of this process that share a runtime, by what is alike
_layers = []  # what the custom op's number stands for


@functools.cache
def make_class():
    """The class that vLLM finds: FusedMoEExpertsModular of this vLLM, with Trimtab's kernels."""
    _register_op()
    # Dynamo traces through the methods that a forward pass calls; it can't look names up.
    base, no_weights_left = seams.experts_base(), seams.no_weights_left()
    standard_format = seams.standard_format()

    class TrimtabExperts(base):
        @staticmethod
        def is_supported_config(
            cls, moe_config, weight_key, activation_key, activation_format
        ):
            flags = Flags.of(seams.config().additional_config)
            reason = refusal(flags, moe_config)
            if reason is None:
                supported, reason = base.is_supported_config(
                    cls, moe_config, weight_key, activation_key, activation_format
                )
                if supported:
                    return True, None
            _refuse(flags, moe_config, reason)
            return False, reason

        @property
        def expects_unquantized_inputs(self):
            return True

        @staticmethod
        def activation_format():
            return standard_format

        @staticmethod
        def _supports_current_device():
            return seams.is_cpu()

        @staticmethod
        def _supports_no_act_and_mul():
            return False

        @staticmethod
        def _supports_quant_scheme(weight_key, activation_key):
            return (weight_key, activation_key) == (None, None)

        @staticmethod
        def _supports_activation(activation):
            return activation.value in _ACTIVATIONS

        @staticmethod
        def _supports_parallel_config(moe_parallel_config):
            return True  # refusal() says what is not

        def process_weights_after_loading(self, layer):
            flags = Flags.of(seams.config().additional_config)
            self.trimtab_layer = _pack(layer, self, flags)

        def workspace_shapes(
            self,
            M,
            N,
            K,
            topk,
            global_num_experts,
            local_num_experts,
            expert_tokens_meta,
            activation,
        ):
            return (0,), (0,), (M, K)

        def finalize_weight_and_reduce_impl(self):
            return no_weights_left()

        def apply(
            self,
            output,
            hidden_states,
            w1,
            w2,
            topk_weights,
            topk_ids,
            activation,
            global_num_experts,
            expert_map,
            a1q_scale,
            a2_scale,
            workspace13,
            workspace2,
            expert_tokens_meta,
            apply_router_weight_on_input,
        ):
            if apply_router_weight_on_input:  # vLLM has multiplied the input by them
                topk_weights = torch.ones_like(topk_weights)
            torch.ops.trimtab.vllm_experts(
                output, hidden_states, topk_weights, topk_ids, self.trimtab_layer
            )

    return TrimtabExperts


def refusal(flags, moe_config):
    """Why Trimtab does not run a layer of this FusedMoEConfig, or None."""
    parallel = moe_config.moe_parallel_config
    if not flags.enabled:
        return 'additional_config["trimtab"]["enabled"] is false'
    if moe_config.activation.value not in _ACTIVATIONS:
        return f"activation {moe_config.activation.value}"
    if moe_config.swiglu_limit is not None and moe_config.activation.value != "swigluoai":
        return f"{moe_config.activation.value} with a limit"
    if moe_config.in_dtype not in (torch.float32, torch.bfloat16):
        return f"rows of {moe_config.in_dtype}; --dtype bfloat16 or float32 are run"
    if parallel.is_sequence_parallel or parallel.pcp_size > 1:
        return "sequence or context parallelism"
    if parallel.use_ep and parallel.dp_size > 1 and parallel.ep_size > parallel.dp_size:
        return "experts spread over data- and tensor-parallel ranks at once"
    if parallel.use_ep and parallel.dp_size > 1 and moe_config.num_experts % parallel.ep_size != 0:
        return f"{moe_config.num_experts} experts on {parallel.ep_size} ranks"
    if flags.experts == "auto" and not parallel.use_ep and _amx_is_faster(moe_config):
        return "vLLM's AMX kernels are faster for bf16; experts of another format are run"
    return None


def _amx_is_faster(moe_config):
    return moe_config.in_dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()


@functools.lru_cache(maxsize=64)
def _say_once(text):
    seams.logger.info(text)


def _refuse(flags, moe_config, reason):
    """One log line; an error where vLLM could not go on, or the user asked for Trimtab."""
    text = f"Trimtab leaves the experts to vLLM: {reason}"
    if not flags.enabled:
        return
    if flags.require:
        raise ValueError(f'{text}, but additional_config["trimtab"]["require"] is true')
    if moe_config.moe_parallel_config.use_ep:
        raise ValueError(
            f"Trimtab can't run these experts: {reason}; vLLM's own experts on CPUs do not heed "
            "expert parallelism: leave --enable-expert-parallel out"
        )
    _say_once(text)


class _Local:
    """Layers of this process that compute what its own experts make of any tokens."""

    def __init__(self, max_tokens, record):
        options = Options(ranks=1, threads=torch.get_num_threads(), max_tokens=max_tokens)
        self._group = LayerGroup(options)
        self.add = self._group.add
        self._runtime = None  # once there was a call to record
        self._recorder = Recorder(record) if record else None
        self._steps = 0
        if record:
            # Processes of multiprocessing run only the second.
            atexit.register(self.end)
            util.Finalize(None, self.end, exitpriority=0)

    def forward(self, layer, x, ids, weights, out):
        runtime = self._group.runtime(ids.shape[-1])
        if self._recorder is not None:
            if seams.is_trial_run():
                ids = torch.full_like(ids, -1)
            if layer == 0:
                self._runtime = runtime
                self._recorder.before_step(self._steps, self._take_load)
                self._steps += 1
        runtime.forward(layer, x, ids, weights, out)

    def end(self):
        """Records the steps since the last record. There will be no more calls."""
        if self._runtime is not None:
            self._recorder.end(self._take_load)
            self._runtime = None

    def _take_load(self):
        load = self._runtime.load()
        self._runtime.reset_load()
        return load


class _Layer:
    """What one MoE layer of this process needs for a call."""

    def __init__(self, group, number, expert_map):
        self.group = group
        self.number = number
        # Global id -> this rank's, -1 for experts of other ranks. The last entry is for id -1.
        self.local_ids = None if expert_map is None else _with_nobody(expert_map)

    def run(self, out, x, weights, ids):
        if self.local_ids is not None:
            ids = self.local_ids[ids]
        if x.stride(-1) != 1:
            x = x.contiguous()
        weights = weights.to(torch.float32).contiguous()
        self.group.forward(self.number, x, ids.contiguous(), weights, out)


def _with_nobody(expert_map):
    return torch.cat([expert_map.to(torch.int64), torch.tensor([-1])])


@torch.no_grad()
def _pack(layer, experts, flags):
    """Packs a layer's weights, gives their memory back and returns the custom op's number for the
    layer. Raises ValueError for weights that the format can't hold."""
    config = experts.moe_config
    w13, w2 = layer.w13_weight.data, layer.w2_weight.data
    activation, interleaved = _ACTIVATIONS[config.activation.value]
    packed = ExpertWeights(
        w13,
        w2,
        gate_up_bias=None if experts.w1_bias is None else experts.w1_bias.data,
        down_bias=None if experts.w2_bias is None else experts.w2_bias.data,
        format=FORMATS[w13.dtype] if flags.experts == "auto" else flags.experts,
        activation=activation,
        interleaved=interleaved,
        threads=torch.get_num_threads(),
    )
    for parameter in (layer.w13_weight, layer.w2_weight):
        parameter.data = torch.zeros(1, dtype=parameter.dtype).expand(parameter.shape)
    expert_map = getattr(layer, "expert_map", None)
    spread = _are_spread(config, flags)
    alike = (packed.num_experts, packed.hidden_size, packed.format, config.max_num_tokens, spread)
    if alike not in _groups:
        if _groups and (flags.record or flags.placement):
            raise ValueError(
                'additional_config["trimtab"]: record and placement are for models whose MoE '
                "layers are all alike"
            )
        if spread:
            _groups[alike] = _make_group(config, flags)
        else:
            _groups[alike] = _Local(config.max_num_tokens, flags.record)
            if config.moe_parallel_config.use_ep:
                watch_ranks()
        seams.logger.info(
            "Trimtab runs layers of %d experts, %d -> %d, in %s%s",
            *(packed.num_experts, packed.hidden_size, packed.intermediate_size, packed.format),
            f", of {config.num_experts} on all ranks" if config.moe_parallel_config.use_ep else "",
        )
    if spread:
        _check_order(expert_map, config)
        expert_map = None
    group = _groups[alike]
    _layers.append(_Layer(group, group.add(packed), expert_map))
    return len(_layers) - 1


def _are_spread(config, flags):
    """Do tokens come to experts of other ranks, by Trimtab's dispatchers? Tensor-parallel ranks all
    have the same tokens; where nothing moves or is recorded, each computes what its own experts
    make of them. Raises ValueError for a placement where there are no ranks to place experts on."""
    parallel = config.moe_parallel_config
    if flags.placement and not parallel.use_ep:
        raise ValueError(
            'additional_config["trimtab"]["placement"] wants --enable-expert-parallel and ranks to '
            "place experts on"
        )
    moves = bool(flags.balancer or flags.placement or flags.record)
    moves = moves or flags.dispatcher not in ("auto", "grouped")
    return parallel.use_ep and (parallel.dp_size > 1 or moves)


def _make_group(config, flags):
    same_tokens = config.moe_parallel_config.dp_size == 1
    number = sum(isinstance(group, RankLayers) for group in _groups.values())
    return RankLayers(number, config.num_experts, config.max_num_tokens, same_tokens, flags)


def _check_order(expert_map, config):
    """Raises ValueError where the ranks' experts are not in order."""
    ranks, rank = config.moe_parallel_config.ep_size, config.moe_parallel_config.ep_rank
    own = config.num_experts // ranks
    held = torch.nonzero(expert_map >= 0).flatten().tolist()
    if held != list(range(rank * own, (rank + 1) * own)):
        raise ValueError(
            "Trimtab spreads experts in order, as many on each rank: leave "
            f"--expert-placement-strategy linear, and let {ranks} divide {config.num_experts}"
        )


@functools.cache
def _register_op():
    """torch.ops.trimtab.vllm_experts, which Dynamo sees as one call that writes `out`."""
    library = torch.library.Library("trimtab", "FRAGMENT")
    library.define(
        "vllm_experts(Tensor(a!) out, Tensor x, Tensor weights, Tensor ids, int layer) -> ()"
    )

    def run(out, x, weights, ids, layer):
        _layers[layer].run(out, x, weights, ids)

    library.impl("vllm_experts", run, "CPU")
    torch.library.register_fake("trimtab::vllm_experts", lambda *_: None, lib=library)
    return library
