# SPDX-License-Identifier: Apache-2.0
"""Where Trimtab meets vLLM's CPU engine: every name of vLLM that the plug-in uses is in this file.

problems() says what a vLLM lacks, so that the plug-in can leave it as it is. The names are those of
vLLM 0.31 to 0.33.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os

logger = logging.getLogger("vllm.trimtab")  # vLLM shows its own loggers only

_MOE = "vllm.model_executor.layers.fused_moe"
_APPLY = (
    "self output hidden_states w1 w2 topk_weights topk_ids activation global_num_experts expert_map"
    " a1q_scale a2_scale workspace13 workspace2 expert_tokens_meta apply_router_weight_on_input"
)

# Module -> name in it -> its parameters, or None for what is not called.
NAMES = {
    "vllm.platforms": {"current_platform.is_cpu": ""},
    "vllm.config": {"get_current_vllm_config": ""},
    "vllm.engine.arg_utils": {
        "EngineArgs": "additional_config enable_expert_parallel enable_eplb eplb_config",
        "EngineArgs.create_engine_config": "self",
    },
    "vllm.config.parallel": {
        "EPLBConfig": "step_interval num_redundant_experts use_async policy log_balancedness",
    },
    "vllm.distributed.parallel_state": {"get_ep_group": ""},
    "vllm.forward_context": {"get_forward_context": "", "is_forward_context_available": ""},
    "vllm.v1.metrics.prometheus": {"get_prometheus_registry": ""},
    f"{_MOE}.oracle.unquantized": {
        "backend_to_kernel_cls": "backend",
        "maybe_make_prepare_finalize": "moe quant_config",
        "UnquantizedMoeBackend.CPU": None,
    },
    f"{_MOE}.activation": {"MoEActivation": None},
    f"{_MOE}.prepare_finalize.no_dp_ep": {
        "MoEPrepareAndFinalizeNoDPEPModular.output_is_reduced": "self"
    },
    f"{_MOE}.topk_weight_and_reduce": {"TopKWeightAndReduceNoOP": None},
    f"{_MOE}.modular_kernel": {
        "FusedMoEActivationFormat.Standard": None,
        "FusedMoEExpertsModular": "moe_config quant_config",
        "FusedMoEExpertsModular.is_supported_config": (
            "cls moe_config weight_key activation_key activation_format"
        ),
        "FusedMoEExpertsModular.process_weights_after_loading": "self layer",
        "FusedMoEExpertsModular.workspace_shapes": (
            "self M N K topk global_num_experts local_num_experts expert_tokens_meta activation"
        ),
        "FusedMoEExpertsModular.apply": _APPLY,
    },
}

# What a class of experts must define, all of which make_experts_class() and experts.py do.
_ABSTRACT = frozenset(
    "activation_format _supports_current_device _supports_no_act_and_mul _supports_quant_scheme "
    "_supports_activation _supports_parallel_config workspace_shapes apply "
    "finalize_weight_and_reduce_impl".split()
)


def look_up(module, path):
    """The object with this path, such as "EngineArgs.create_engine_config", in a module of
    vLLM. Raises ImportError or AttributeError."""
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def problems():
    """What this vLLM lacks of NAMES: a list of sentences; none if Trimtab can run in it."""
    found = []
    for module, names in NAMES.items():
        for path, called_with in names.items():
            try:
                there = look_up(module, path)
            except (ImportError, AttributeError) as error:
                found.append(f"there is no {module}.{path}: {error}")
                continue
            wanted = called_with.split() if called_with else []
            if wanted and (missing := set(wanted) - set(parameters(there))):
                found.append(f"{module}.{path} takes no {', '.join(sorted(missing))}")
    if not found:
        abstract = experts_base().__abstractmethods__ - _ABSTRACT
        found += [f"experts must define {name}, which is new" for name in sorted(abstract)]
    return found


def parameters(function):
    """The parameters of a function, or of a class when it is made."""
    return inspect.signature(function).parameters


def version():
    """vLLM's version, for messages."""
    return getattr(importlib.import_module("vllm"), "__version__", "of unknown version")


def is_cpu():
    """Does vLLM run on a CPU here?"""
    return look_up("vllm.platforms", "current_platform.is_cpu")()


def config():
    """The VllmConfig of the model that is being built."""
    return look_up("vllm.config", "get_current_vllm_config")()


def experts_base():
    """vLLM's class of experts that get tokens with their ids and weights."""
    return look_up(f"{_MOE}.modular_kernel", "FusedMoEExpertsModular")


def standard_format():
    """Experts get tokens as they come, not sorted by expert."""
    return look_up(f"{_MOE}.modular_kernel", "FusedMoEActivationFormat.Standard")


def no_weights_left():
    """The class whose objects tell vLLM that experts have multiplied by the router's weights and
    added up."""
    return look_up(f"{_MOE}.topk_weight_and_reduce", "TopKWeightAndReduceNoOP")


def put_first(make_class):
    """Lets vLLM ask the class that make_class() returns first, where it looks for experts on CPUs.
    May be called any number of times."""
    oracle = importlib.import_module(f"{_MOE}.oracle.unquantized")
    own = oracle.backend_to_kernel_cls
    if hasattr(own, "trimtab"):
        return

    @functools.wraps(own)
    def backend_to_kernel_cls(backend):
        classes = own(backend)
        if backend == oracle.UnquantizedMoeBackend.CPU:
            return [make_class(), *classes]
        return classes

    backend_to_kernel_cls.trimtab = own
    oracle.backend_to_kernel_cls = backend_to_kernel_cls


def keep_tokens():
    """Lets vLLM hand each data-parallel rank's tokens to its experts as they are and add nothing up
    afterwards, where experts are spread over such ranks: Trimtab's bring tokens to experts and back
    themselves. May be called any number of times."""
    oracle = importlib.import_module(f"{_MOE}.oracle.unquantized")
    own = oracle.maybe_make_prepare_finalize
    if hasattr(own, "trimtab"):
        return
    base = look_up(f"{_MOE}.prepare_finalize.no_dp_ep", "MoEPrepareAndFinalizeNoDPEPModular")

    class TrimtabPrepareAndFinalize(base):
        def output_is_reduced(self):
            return True

    @functools.wraps(own)
    def maybe_make_prepare_finalize(moe, *args, **kwargs):
        parallel = moe.moe_parallel_config
        if parallel.use_ep and parallel.dp_size > 1:
            return TrimtabPrepareAndFinalize()
        return own(moe, *args, **kwargs)

    maybe_make_prepare_finalize.trimtab = own
    oracle.maybe_make_prepare_finalize = maybe_make_prepare_finalize


def expert_parallel_ranks():
    """vLLM's group of ranks over which experts are spread: cpu_group (gloo), ranks (their
    numbers in torch.distributed), rank_in_group, world_size."""
    return look_up("vllm.distributed.parallel_state", "get_ep_group")()


def is_trial_run():
    """Do the tokens of this forward pass belong to no request? So it is when vLLM warms up, and on
    a data-parallel rank that has nothing to do while others have."""
    context = importlib.import_module("vllm.forward_context")
    if not context.is_forward_context_available():
        return True
    return context.get_forward_context().attn_metadata is None


def add_to_metrics_page(collector):
    """Lets the page /metrics of vLLM's server show what this collector of prometheus_client has.
    May be called any number of times with the same one."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        look_up("vllm.v1.metrics.prometheus", "get_prometheus_registry")().register(collector)
        return
    # There are several API servers, and each request makes a registry of what all processes have.
    pages = look_up("prometheus_client.multiprocess", "MultiProcessCollector")
    own = pages.collect
    if hasattr(own, "trimtab"):
        return

    @functools.wraps(own)
    def collect(self):
        return [*own(self), *collector.collect()]

    collect.trimtab = own
    pages.collect = collect


def without_eplb():
    """vLLM's settings of its own balancer, as they are when it is off."""
    return look_up("vllm.config.parallel", "EPLBConfig")()


def before_engine_config(check):
    """Lets check(arguments) see, and change, an engine's EngineArgs before vLLM checks them. May be
    called any number of times."""
    engine_args = look_up("vllm.engine.arg_utils", "EngineArgs")
    own = engine_args.create_engine_config
    if hasattr(own, "trimtab"):
        return

    @functools.wraps(own)
    def create_engine_config(self, *args, **kwargs):
        check(self)
        return own(self, *args, **kwargs)

    create_engine_config.trimtab = own
    engine_args.create_engine_config = create_engine_config
