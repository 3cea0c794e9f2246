# SPDX-License-Identifier: Apache-2.0
"""The experts that trimtab.vllm_cpu gives vLLM, compared with the same sums in torch."""

import logging
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import recorded_vllm  # noqa: E402

import trimtab  # noqa: E402
from trimtab.vllm_cpu import experts, recorder, seams  # noqa: E402

RELEASE = sorted(recorded_vllm.RECORDED)[-1]
TOKENS, TOP_K, EXPERTS, HIDDEN, INTERMEDIATE = 13, 2, 6, 64, 32


def moe_config(activation="silu", dtype=torch.float32, use_ep=False, **changes):
    parallel = {
        "use_ep": use_ep,
        "dp_size": 1,
        "pcp_size": 1,
        "ep_size": 2 if use_ep else 1,
        "ep_rank": 0,
        "is_sequence_parallel": False,
    }
    config = types.SimpleNamespace(
        activation=recorded_vllm.MoEActivation(activation),
        swiglu_limit=None,
        in_dtype=dtype,
        max_num_tokens=64,
        num_experts=EXPERTS,
        moe_parallel_config=types.SimpleNamespace(**parallel),
    )
    for name, value in changes.items():
        owner = config.moe_parallel_config if name in parallel else config
        setattr(owner, name, value)
    return config


def layer_of(dtype=torch.float32, bias=False, expert_map=None, seed=3):
    generator = torch.Generator().manual_seed(seed)

    def parameter(*shape):
        values = torch.randn(shape, generator=generator) * 0.2
        return torch.nn.Parameter(values.to(dtype), requires_grad=False)

    layer = torch.nn.Module()
    layer.w13_weight = parameter(EXPERTS, 2 * INTERMEDIATE, HIDDEN)
    layer.w2_weight = parameter(EXPERTS, HIDDEN, INTERMEDIATE)
    layer.w13_bias = parameter(EXPERTS, 2 * INTERMEDIATE) if bias else None
    layer.w2_bias = parameter(EXPERTS, HIDDEN) if bias else None
    layer.expert_map = expert_map
    return layer


def tensors_of(layer):
    return [
        None if t is None else t.detach().clone().double()
        for t in (layer.w13_weight, layer.w2_weight, layer.w13_bias, layer.w2_bias)
    ]


def batch(num_experts=EXPERTS, dtype=torch.float32, seed=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype)
    ids = torch.stack([torch.randperm(num_experts, generator=generator)[:TOP_K]] * TOKENS)
    ids = (ids + torch.arange(TOKENS)[:, None]) % num_experts
    return x, torch.rand(TOKENS, TOP_K, generator=generator), ids.to(torch.int32)


def gated(gate_up, activation):
    if activation == "swigluoai":
        gate, up = gate_up[..., ::2].clamp(max=7), gate_up[..., 1::2].clamp(-7, 7)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)
    gate, up = gate_up.chunk(2, -1)
    kinds = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    return kinds[activation](gate) * up


def expected(tensors, x, weights, ids, activation="silu"):
    w13, w2, b13, b2 = tensors
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for k in range(TOP_K):
            expert = ids[token, k]
            if expert < 0:
                continue
            gate_up = w13[expert] @ x[token].double() + (0 if b13 is None else b13[expert])
            y = w2[expert] @ gated(gate_up, activation) + (0 if b2 is None else b2[expert])
            out[token] += weights[token, k].double() * y
    return out


@pytest.fixture
def additional_config(monkeypatch):
    """Settings that a test may change, in a vLLM that has just been started."""
    settings = {}
    monkeypatch.setattr(experts, "_groups", {})
    monkeypatch.setattr(experts, "_layers", [])
    experts.make_class.cache_clear()
    experts._say_once.cache_clear()
    recorded_vllm.install(monkeypatch, RELEASE, additional_config={"trimtab": settings})
    yield settings
    experts.make_class.cache_clear()


def loaded(layer, config):
    ours = experts.make_class()(config, (layer.w13_bias, layer.w2_bias))
    ours.process_weights_after_loading(layer)
    return ours


def applied(ours, layer, x, weights, ids, on_input=False):
    out = torch.full_like(x, 7.0)
    names = "w1 w2 activation global_num_experts expert_map a1q_scale a2_scale workspace13"
    rest = dict.fromkeys([*names.split(), "workspace2", "expert_tokens_meta"])
    ours.apply(
        output=out,
        hidden_states=x,
        topk_weights=weights,
        topk_ids=ids,
        apply_router_weight_on_input=on_input,
        **rest,
    )
    return out


def assert_near(out, wanted, tolerance):
    error = (out.double() - wanted).abs().max() / wanted.abs().max()
    assert error < tolerance, float(error)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swigluoai"])
@pytest.mark.parametrize("bias", [False, True])
def test_computes_what_torch_does(additional_config, activation, bias):
    layer = layer_of(bias=bias)
    tensors = tensors_of(layer)
    ours = loaded(layer, moe_config(activation))
    x, weights, ids = batch()
    out = applied(ours, layer, x, weights, ids)
    assert_near(out, expected(tensors, x, weights, ids, activation), 1e-5)


@pytest.mark.parametrize(
    ("dtype", "name", "tolerance"),
    [
        (torch.bfloat16, "auto", 0.02),
        (torch.bfloat16, "w8a8", 0.05),
        (torch.bfloat16, "w4a8-g32", 0.3),
        (torch.float32, "w8a8", 0.05),
    ],
)
def test_keeps_experts_in_the_format_that_is_asked_for(additional_config, dtype, name, tolerance):
    additional_config["experts"] = name
    layer = layer_of(dtype)
    tensors = tensors_of(layer)
    ours = loaded(layer, moe_config(dtype=dtype))
    (alike,) = experts._groups
    assert alike[2] == ("bf16" if name == "auto" else name)
    x, weights, ids = batch(dtype=dtype)
    out = applied(ours, layer, x, weights, ids)
    assert out.dtype == dtype
    assert_near(out, expected(tensors, x, weights, ids), tolerance)


def test_gives_the_memory_of_the_weights_back(additional_config):
    layer = layer_of()
    shapes = layer.w13_weight.shape, layer.w2_weight.shape
    loaded(layer, moe_config())
    for weight, shape in zip((layer.w13_weight, layer.w2_weight), shapes):
        assert weight.shape == shape
        assert weight.untyped_storage().nbytes() == weight.element_size()


def test_layers_that_are_alike_share_a_runtime(additional_config):
    layers = [layer_of(seed=seed) for seed in (1, 2, 3)]
    tensors = [tensors_of(layer) for layer in layers]
    ours = [loaded(layer, moe_config()) for layer in layers]
    assert len(experts._groups) == 1
    x, weights, ids = batch()
    for one, layer, of_layer in zip(ours, layers, tensors):
        assert_near(applied(one, layer, x, weights, ids), expected(of_layer, x, weights, ids), 1e-5)


def test_ids_of_other_ranks_experts_count_as_nobody(additional_config, monkeypatch):
    """Two ranks, each with every other expert: the outputs add up to that of all experts."""
    watched = []
    monkeypatch.setattr(experts, "watch_ranks", lambda: watched.append(True))
    num_experts = 2 * EXPERTS
    x, weights, ids = batch(num_experts)
    ids[4, 0] = -1
    total, wanted = torch.zeros_like(x), torch.zeros(x.shape, dtype=torch.float64)
    for rank in range(2):
        expert_map = torch.full((num_experts,), -1, dtype=torch.int32)
        expert_map[rank::2] = torch.arange(EXPERTS, dtype=torch.int32)
        layer = layer_of(expert_map=expert_map, seed=rank)
        tensors = tensors_of(layer)
        ours = loaded(layer, moe_config(use_ep=True))
        out = applied(ours, layer, x, weights, ids)
        local = torch.where(ids >= 0, expert_map[ids.clamp(min=0)], -1)
        assert_near(out, expected(tensors, x, weights, local), 1e-5)
        total += out
        wanted += expected(tensors, x, weights, local)
    assert watched  # each tells when the other one dies
    assert_near(total, wanted, 1e-5)


def test_weights_on_the_input_are_left_to_vllm(additional_config):
    layer = layer_of()
    tensors = tensors_of(layer)
    ours = loaded(layer, moe_config())
    x, weights, ids = batch()
    out = applied(ours, layer, x, weights, ids, on_input=True)
    assert_near(out, expected(tensors, x, torch.ones_like(weights), ids), 1e-5)


def test_dynamo_sees_one_call(additional_config):
    layer = layer_of()
    ours = loaded(layer, moe_config())
    x, weights, ids = batch()
    plain = applied(ours, layer, x, weights, ids)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def forward(*args):  # the methods that vLLM calls in a forward pass
        assert ours.activation_format() == standard
        assert ours.workspace_shapes(TOKENS, 1, HIDDEN, 1, 1, 1, None, None)[0] == (0,)
        assert ours.expects_unquantized_inputs
        ours.finalize_weight_and_reduce_impl()
        return applied(ours, layer, *args) * 2

    standard = seams.standard_format()
    compiled = torch.compile(forward, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x, weights, ids), plain * 2)
    assert len(graphs) == 1
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert sum("vllm_experts" in target for target in targets) == 1


REFUSED = {
    "activation relu2": {"activation": "relu2"},
    "silu with a limit": {"swiglu_limit": 7.0},
    "rows of torch.float16": {"dtype": torch.float16},
    "sequence or context parallelism": {"is_sequence_parallel": True},
}


def supported(config, weight_key=None):
    ours = experts.make_class()
    return ours.is_supported_config(ours, config, weight_key, None, "standard")


@pytest.mark.parametrize("reason", REFUSED)
def test_leaves_what_it_can_not_run_to_vllm(additional_config, reason, caplog):
    with caplog.at_level(logging.INFO, "vllm.trimtab"):
        for _ in range(3):  # once for each layer
            ok, why = supported(moe_config(**REFUSED[reason]))
    assert not ok and why.startswith(reason)
    assert [r.getMessage() for r in caplog.records] == [
        f"Trimtab leaves the experts to vLLM: {why}"
    ]
    assert supported(moe_config()) == (True, None)


def test_leaves_checkpoints_that_are_quantised_to_vllm(additional_config):
    ok, why = supported(moe_config(), weight_key="int8")
    assert not ok and "quantization" in why


@pytest.mark.parametrize("reason", REFUSED)
def test_require_makes_it_an_error(additional_config, reason):
    additional_config["require"] = True
    with pytest.raises(ValueError, match="require"):
        supported(moe_config(**REFUSED[reason]))


def test_expert_parallelism_is_never_left_to_vllm(additional_config):
    """vLLM's own experts on CPUs end in a segmentation fault there."""
    with pytest.raises(ValueError, match="leave --enable-expert-parallel out"):
        supported(moe_config("relu2", use_ep=True))


def test_can_be_switched_off(additional_config, caplog):
    additional_config["enabled"] = False
    with caplog.at_level(logging.INFO, "vllm.trimtab"):
        assert not supported(moe_config())[0]
    assert caplog.records == []
    assert seams.version() == RELEASE


SPREAD_REFUSED = {
    "experts spread over data- and tensor-parallel": {"dp_size": 2, "ep_size": 4},
    "6 experts on 4 ranks": {"dp_size": 4, "ep_size": 4},
}


@pytest.mark.parametrize("reason", SPREAD_REFUSED)
def test_ranks_that_experts_can_not_be_spread_over(additional_config, reason):
    with pytest.raises(ValueError, match=reason):
        supported(moe_config(use_ep=True, **SPREAD_REFUSED[reason]))


class Spread:
    """Takes the place of the layers over ranks, which test_rank_runtime.py has."""

    def __init__(self, number, num_experts, max_tokens, same_tokens, flags):
        self.same_tokens = same_tokens
        self.added = []

    def add(self, weights):
        self.added.append(weights.num_experts)
        return len(self.added) - 1


@pytest.mark.parametrize(
    ("parallel", "settings", "spread", "same_tokens"),
    [
        ({"dp_size": 1}, {}, False, None),
        ({"dp_size": 1}, {"dispatcher": "grouped"}, False, None),
        ({"dp_size": 1}, {"dispatcher": "pull"}, True, True),
        ({"dp_size": 1}, {"balancer": {"interval": 8}}, True, True),
        ({"dp_size": 1}, {"placement": "plan.json"}, True, True),
        ({"dp_size": 1}, {"record": "load.jsonl"}, True, True),
        ({"dp_size": 2}, {}, True, False),
    ],
    ids=str,
)
def test_which_layers_are_spread(
    additional_config, monkeypatch, parallel, settings, spread, same_tokens
):
    monkeypatch.setattr(experts, "RankLayers", Spread)
    monkeypatch.setattr(experts, "watch_ranks", lambda: None)
    additional_config.update(settings)
    expert_map = torch.cat([torch.arange(EXPERTS), torch.full((EXPERTS,), -1)]).to(torch.int32)
    config = moe_config(use_ep=True, num_experts=2 * EXPERTS, **parallel)
    loaded(layer_of(expert_map=expert_map), config)
    (group,) = experts._groups.values()
    assert isinstance(group, Spread) == spread
    if spread:
        assert group.same_tokens == same_tokens and group.added == [EXPERTS]
        assert experts._layers[0].local_ids is None


def test_placements_are_for_ranks(additional_config):
    additional_config["placement"] = "plan.json"
    with pytest.raises(ValueError, match="ranks to place experts on"):
        loaded(layer_of(), moe_config())


@pytest.mark.parametrize("key", ["placement", "record"])
def test_layers_that_are_not_alike_have_no_files(additional_config, monkeypatch, key):
    monkeypatch.setattr(experts, "RankLayers", Spread)
    additional_config[key] = "file"
    expert_map = torch.cat([torch.arange(EXPERTS), torch.full((EXPERTS,), -1)]).to(torch.int32)
    configs = [
        moe_config(use_ep=True, num_experts=2 * EXPERTS, dp_size=2, max_num_tokens=tokens)
        for tokens in (64, 32)
    ]
    loaded(layer_of(expert_map=expert_map), configs[0])
    with pytest.raises(ValueError, match="all alike"):
        loaded(layer_of(expert_map=expert_map), configs[1])


def test_records_the_load_of_one_rank(additional_config, monkeypatch, tmp_path):
    file = tmp_path / "load.jsonl"
    additional_config["record"] = str(file)
    layer = layer_of()
    ours = loaded(layer, moe_config())
    x, weights, ids = batch()
    for step in range(recorder.STEPS + 1):
        monkeypatch.setattr(seams, "is_trial_run", lambda step=step: step == 3)
        out = applied(ours, layer, x, weights, ids)
        assert out.any() == (step != 3)
    once = np.bincount(ids.flatten(), minlength=EXPERTS)
    recorded = [7, 8, 16, 32]  # steps of each record, without the trial run
    load = trimtab.read_recording(str(file)).load
    assert np.array_equal(load.counts, [[steps * once] for steps in recorded])
    (group,) = experts._groups.values()
    for _ in range(2):  # what is left is recorded once
        group.end()
        load = trimtab.read_recording(str(file)).load
        assert np.array_equal(load.counts, [[steps * once] for steps in [*recorded, 1]])


def test_spread_experts_must_be_in_order(additional_config, monkeypatch):
    monkeypatch.setattr(experts, "RankLayers", Spread)
    expert_map = torch.full((2 * EXPERTS,), -1, dtype=torch.int32)
    expert_map[::2] = torch.arange(EXPERTS, dtype=torch.int32)
    config = moe_config(use_ep=True, num_experts=2 * EXPERTS, dp_size=2)
    with pytest.raises(ValueError, match="placement-strategy linear"):
        loaded(layer_of(expert_map=expert_map), config)
