# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM as far as trimtab.vllm_cpu meets it: modules with the names and parameters of
a release, from vllm_cpu_seams.json, and the least behaviour that carries the plug-in."""

import abc
import enum
import inspect
import json
import pathlib
import sys
import types

RECORDED = json.loads((pathlib.Path(__file__).parent / "vllm_cpu_seams.json").read_text())
_MOE = "vllm.model_executor.layers.fused_moe"


class MoEActivation(enum.Enum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SWIGLUOAI = "swigluoai"
    RELU2 = "relu2"


class Backend(enum.Enum):
    CPU = "CPU"
    TRITON = "TRITON"


class EPLBConfig:
    def __init__(
        self,
        step_interval=3000,
        num_redundant_experts=0,
        use_async=True,
        policy="default",
        log_balancedness=False,
    ):
        self.step_interval = step_interval
        self.num_redundant_experts = num_redundant_experts
        self.use_async = use_async


class NoWeightsLeft:
    """vLLM's TopKWeightAndReduceNoOP."""


class OwnExperts:
    """vLLM's own, which the oracle returns."""


def install(monkeypatch, release, without=None, additional_config=None):
    """Puts the modules of a release where `import` finds them. without: (module, path) that is left
    out. Returns the module of the oracle."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("TRIMTAB_VLLM_METRICS", "")  # what an engine makes of it ends with the test
    record = RECORDED[release]
    for module, names in record["names"].items():
        for path, parameters in names.items():
            if without is None or (module, path) != without and not _inside(module, path, without):
                _put(_module(monkeypatch, module), path, _callable(parameters))
    sys.modules["vllm"].__version__ = release
    _give_life(record, without, additional_config or {})
    return sys.modules[f"{_MOE}.oracle.unquantized"]


def _inside(module, path, without):
    return module == without[0] and path.startswith(without[1] + ".")


def _module(monkeypatch, name):
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(_module(monkeypatch, parent), last, module)
    return sys.modules[name]


def _put(owner, path, value):
    *outer, last = path.split(".")
    for name in outer:
        if not hasattr(owner, name):
            setattr(owner, name, type(name, (), {}))
        owner = getattr(owner, name)
    setattr(owner, last, staticmethod(value) if inspect.isclass(owner) else value)


def _callable(parameters):
    """A function or, where it takes self first and may be a class, one that only has the right
    parameters."""

    def function(*args, **kwargs):
        raise AssertionError("nobody gave it a behaviour")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(name, kind) for name in parameters or ()]
    )
    return function


def _give_life(record, without, additional_config):
    def put(module, path, value):
        if (module, path) != without and module in sys.modules:
            _put(sys.modules[module], path, value)

    put("vllm.platforms", "current_platform.is_cpu", lambda: True)
    config = types.SimpleNamespace(additional_config=additional_config)
    put("vllm.config", "get_current_vllm_config", lambda: config)
    put(f"{_MOE}.activation", "MoEActivation", MoEActivation)
    put(f"{_MOE}.topk_weight_and_reduce", "TopKWeightAndReduceNoOP", NoWeightsLeft)
    put("vllm.config.parallel", "EPLBConfig", EPLBConfig)
    registry = types.SimpleNamespace(register=lambda collector: None)
    put("vllm.v1.metrics.prometheus", "get_prometheus_registry", lambda: registry)
    oracle = f"{_MOE}.oracle.unquantized"
    put(oracle, "UnquantizedMoeBackend.CPU", Backend.CPU)
    put(oracle, "backend_to_kernel_cls", lambda backend: [OwnExperts])
    if without is None:
        put("vllm.engine.arg_utils", "EngineArgs", _engine_args_class())
        kernel = f"{_MOE}.modular_kernel"
        put(kernel, "FusedMoEExpertsModular", experts_base(record))
        put(kernel, "FusedMoEActivationFormat.Standard", "standard")


def engine_args(*args, **kwargs):
    """EngineArgs of the vLLM that is installed."""
    return sys.modules["vllm.engine.arg_utils"].EngineArgs(*args, **kwargs)


def _engine_args_class():
    class EngineArgs:
        def __init__(
            self,
            additional_config=None,
            enable_expert_parallel=False,
            enable_eplb=False,
            eplb_config=None,
        ):
            self.additional_config = additional_config or {}
            self.enable_expert_parallel = enable_expert_parallel
            self.enable_eplb = enable_eplb
            self.eplb_config = eplb_config

        def create_engine_config(self):
            return "config"

    return EngineArgs


def experts_base(record):
    """vLLM's base class of experts, which asks what each class supports as the real one does."""

    class FusedMoEExpertsModular(abc.ABC):
        def __init__(self, moe_config, quant_config):
            self.moe_config = moe_config
            self.w1_bias, self.w2_bias = quant_config

        @staticmethod
        def is_supported_config(cls, moe_config, weight_key, activation_key, activation_format):
            if not cls._supports_activation(moe_config.activation):
                return False, f"kernel does not support {moe_config.activation}"
            if not cls._supports_quant_scheme(weight_key, activation_key):
                return False, "kernel does not support the quantization"
            return True, None

        def process_weights_after_loading(self, layer):
            pass

    recorded = record["names"][f"{_MOE}.modular_kernel"]
    for name in record["abstract"]:
        method = _callable(recorded.get(f"FusedMoEExpertsModular.{name}"))
        method.__isabstractmethod__ = True
        setattr(FusedMoEExpertsModular, name, method)
    abc.update_abstractmethods(FusedMoEExpertsModular)
    return FusedMoEExpertsModular
