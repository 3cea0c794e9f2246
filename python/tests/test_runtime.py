# SPDX-License-Identifier: Apache-2.0
"""ExpertWeights and MoeRuntime with numpy arrays alone."""

import multiprocessing
import signal
import threading

import numpy as np
import pytest

import trimtab

try:
    import torch  # noqa: F401  brings an OpenMP runtime, which share_openmp is about
except ImportError:
    pass

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K = 6, 32, 24, 3


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def arrays(rng, dtype=np.float32):
    gate_up = rng.standard_normal((EXPERTS, 2 * INTERMEDIATE, HIDDEN)).astype(dtype) / 6
    down = rng.standard_normal((EXPERTS, HIDDEN, INTERMEDIATE)).astype(dtype) / 6
    return gate_up, down


def routed(rng, tokens):
    x = rng.standard_normal((tokens, HIDDEN)).astype(np.float32)
    ids = (
        np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)])
        if tokens
        else np.empty((0, TOP_K))
    )
    weights = rng.random((tokens, TOP_K)).astype(np.float32)
    return x, ids.astype(np.int64), weights


def reference(gate_up, down, x, ids, weights, gate_up_bias=None, down_bias=None):
    out = np.zeros_like(x)
    for t in range(len(x)):
        for e, w in zip(ids[t], weights[t]):
            if not 0 <= e < EXPERTS:
                continue
            h = gate_up[e] @ x[t] + (0 if gate_up_bias is None else gate_up_bias[e])
            y = down[e] @ (silu(h[:INTERMEDIATE]) * h[INTERMEDIATE:])
            out[t] += w * (y + (0 if down_bias is None else down_bias[e]))
    return out


def forward(runtime, x, ids, weights, layer=0):
    out = np.full_like(x, np.nan)
    runtime.forward(layer, x, ids, weights, out)
    return out


def runtime_of(gate_up, down, top_k=TOP_K, format="f32", **options):
    return trimtab.MoeRuntime(
        [trimtab.ExpertWeights(gate_up, down, format=format)], top_k, **options
    )


@pytest.mark.parametrize("share_openmp", [False, True])
@pytest.mark.parametrize("ranks, threads", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (7, 1)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 37])
def test_same_as_numpy_for_any_ranks_and_threads(rng, ranks, threads, tokens, share_openmp):
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, ranks=ranks, threads=threads, share_openmp=share_openmp)
    x, ids, weights = routed(rng, tokens)
    out = forward(runtime, x, ids, weights)
    np.testing.assert_allclose(out, reference(gate_up, down, x, ids, weights), rtol=1e-4, atol=1e-5)
    alone = forward(runtime_of(gate_up, down, share_openmp=False), x, ids, weights)
    assert np.array_equal(out, alone), "bits depend on ranks or threads"


LAYOUTS = [
    {"tp": 2},
    {"tp": 2, "pcp": 2},
    {"tp": 3, "sp": False},
    {"tp": 2, "ep": False},
    {"tp": 2, "pcp": 2, "ep": False},
]


@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_layouts_give_what_one_rank_gives(rng, sizes, tokens):
    gate_up, down = arrays(rng)
    layout = trimtab.ParallelLayout(**sizes)
    packed = trimtab.ExpertWeights(gate_up, down, format="f32", parts=layout.expert_parts)
    assert (packed.parts, packed.part) == (layout.expert_parts, None)
    assert packed.intermediate_size == INTERMEDIATE
    runtime = trimtab.MoeRuntime([packed], TOP_K, layout=layout, threads=2, max_tokens=10)
    assert runtime.ranks == layout.ranks and runtime.layout == layout
    x, ids, weights = routed(rng, tokens)
    out = forward(runtime, x, ids, weights)
    np.testing.assert_allclose(out, reference(gate_up, down, x, ids, weights), rtol=1e-4, atol=1e-5)
    if layout.ep and layout.sp:
        assert np.array_equal(out, forward(runtime_of(gate_up, down), x, ids, weights))
    assert runtime.load().sum() == tokens * TOP_K


def test_row_budgets_keep_the_bits(rng):
    gate_up, down = arrays(rng)
    x, ids, weights = routed(rng, 50)
    ids[:] = 0  # all picks are one rank's
    wanted = forward(runtime_of(gate_up, down), x, ids, weights)
    rows = {}
    for budget in (None, 0, 1):
        runtime = runtime_of(gate_up, down, ranks=3, row_budget=budget)
        assert np.array_equal(forward(runtime, x, ids, weights), wanted)
        rows[budget] = runtime.row_budget
    level = -(-2048 // 3) * TOP_K
    assert rows == {None: -(-3 * level // 2), 0: 0, 1: level}


@pytest.mark.parametrize(
    "options, text",
    [
        ({"layout": {"tp": 2, "dp": 2}}, "take dp 1"),
        ({"layout": {"tp": 2}, "ranks": 3}, "are not 3 ranks"),
        ({"layout": {"tp": 2, "ep": False}}, "it takes all 2 parts"),
        ({"layout": {"tp": 2, "sp": False}, "row_budget": 2}, "row budget"),
        ({"layout": {"tp": 2, "sp": False}, "dispatcher": "pull"}, "dispatcher auto, not pull"),
        ({"ranks": 2, "dispatcher": "pull_batched", "row_budget": 2}, "takes no row budget"),
        ({"ranks": 2, "row_budget": -1}, "-1 times the level load"),
    ],
    ids=str,
)
def test_layouts_and_budgets_that_mean_nothing_are_refused(rng, options, text):
    if "layout" in options:
        options = {**options, "layout": trimtab.ParallelLayout(**options["layout"])}
    with pytest.raises(ValueError, match=text):
        runtime_of(*arrays(rng), **options)


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_may_multiply_the_input(rng, ranks):
    gate_up, down = arrays(rng)
    x, ids, weights = routed(rng, 11)
    ids, weights = ids[:, :1].copy(), weights[:, :1].copy()
    experts = trimtab.ExpertWeights(gate_up, down, format="f32")
    runtime = trimtab.MoeRuntime([experts], 1, ranks=ranks, weight_on_input=True)
    wanted = reference(gate_up, down, x * weights, ids, np.ones_like(weights))
    np.testing.assert_allclose(forward(runtime, x, ids, weights), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="need one pick a token, not 3"):
        trimtab.MoeRuntime([experts], TOP_K, weight_on_input=True)


def test_experts_may_weigh_and_sum(rng):
    gate_up, down = arrays(rng)
    call = routed(rng, 11)
    experts = trimtab.ExpertWeights(gate_up, down, format="f32")

    def output(dispatcher, left):
        runtime = trimtab.MoeRuntime([experts], TOP_K, ranks=2, dispatcher=dispatcher, left=left)
        return forward(runtime, *call)

    for dispatcher, left in [("pull", "sum"), ("all_gather", "sum"), ("all_gather", "nothing")]:
        np.testing.assert_array_equal(
            output(dispatcher, left), output(dispatcher, "weight_and_sum")
        )
    with pytest.raises(ValueError, match="take all_gather"):
        output("pull", "nothing")
    with pytest.raises(ValueError, match='left "all" is not known'):
        output("pull", "all")


def test_values_of_layouts():
    layout = trimtab.ParallelLayout(tp=2, dp=3, pcp=2, ep=False)
    assert (layout.ranks, layout.expert_parts) == (12, 2)
    assert eval(repr(layout), {"ParallelLayout": trimtab.ParallelLayout}) == layout
    assert layout != trimtab.ParallelLayout(tp=2, dp=3, pcp=2) and layout != "tp 2"
    assert hash(layout) == hash(trimtab.ParallelLayout(tp=2, dp=3, pcp=2, ep=False))
    for wrong in ({"tp": 0}, {"tp": 1 << 16, "dp": 1 << 16}, {"tp": 2, "dp": 2, "sp": False}):
        with pytest.raises(ValueError, match="layout"):
            trimtab.ParallelLayout(**wrong)


def test_long_calls_take_several_passes(rng):
    gate_up, down = arrays(rng)
    x, ids, weights = routed(rng, 50)
    whole = forward(runtime_of(gate_up, down), x, ids, weights)
    pieces = forward(runtime_of(gate_up, down, ranks=2, max_tokens=7), x, ids, weights)
    assert np.array_equal(whole, pieces)


def test_layouts_and_biases(rng):
    gate_up, down = arrays(rng)
    gate_up_bias = rng.standard_normal((EXPERTS, 2 * INTERMEDIATE)).astype(np.float32)
    down_bias = rng.standard_normal((EXPERTS, HIDDEN)).astype(np.float32)
    order = np.arange(2 * INTERMEDIATE).reshape(2, INTERMEDIATE).T.ravel()  # gate and up in turns
    x, ids, weights = routed(rng, 9)
    wanted = reference(gate_up, down, x, ids, weights, gate_up_bias, down_bias)
    layouts = {
        "plain": (gate_up, down, gate_up_bias, {}),
        "interleaved": (gate_up[:, order], down, gate_up_bias[:, order], {"interleaved": True}),
        "transposed": (
            gate_up.swapaxes(1, 2).copy(),
            down.swapaxes(1, 2).copy(),
            gate_up_bias,
            {"transposed": True},
        ),
        "strided": (
            gate_up.swapaxes(1, 2),
            down.swapaxes(1, 2),
            gate_up_bias,
            {"transposed": True},
        ),
    }
    for name, (g, d, bias, flags) in layouts.items():
        packed = trimtab.ExpertWeights(
            g, d, gate_up_bias=bias, down_bias=down_bias, format="f32", **flags
        )
        out = forward(trimtab.MoeRuntime([packed], TOP_K, ranks=2), x, ids, weights)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def test_swiglu_with_limits(rng):
    gate_up, down = arrays(rng)
    x, ids, weights = routed(rng, 9)
    x *= 20
    packed = trimtab.ExpertWeights(
        gate_up, down, format="f32", activation="swiglu_clamp", alpha=1.5, limit=4.0
    )
    out = forward(trimtab.MoeRuntime([packed], TOP_K), x, ids, weights)
    wanted = np.zeros_like(x)
    for t in range(len(x)):
        for e, w in zip(ids[t], weights[t]):
            h = gate_up[e] @ x[t]
            g, u = np.minimum(h[:INTERMEDIATE], 4.0), np.clip(h[INTERMEDIATE:], -4.0, 4.0)
            wanted[t] += w * (down[e] @ ((u + 1) * g / (1 + np.exp(-1.5 * g))))
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "format, tolerance",
    [
        ("bf16", 0.01),
        ("w8a8", 0.03),
        ("w4a8", 0.25),
        ("mxfp8", 0.12),
        ("w4a16", 0.25),
        ("w8a16", 0.02),
    ],
)
def test_formats(rng, format, tolerance):
    gate_up, down = arrays(rng)
    x, ids, weights = routed(rng, 20)
    runtime = runtime_of(gate_up, down, format=format, ranks=2)
    assert runtime.format == format
    wanted = reference(gate_up, down, x, ids, weights)
    out = forward(runtime, x, ids, weights)
    assert 0 < np.linalg.norm(out - wanted) < tolerance * np.linalg.norm(wanted)


def test_every_listed_format_is_taken(rng):
    gate_up, down = arrays(rng)
    names = trimtab.weight_formats()
    assert "w4a16-gN" in names and len(names) > 10
    for name in names:
        format = name.replace("N", "32")
        assert trimtab.ExpertWeights(gate_up, down, format=format).format == format.replace(
            "w8a16-channel", "w8a16"
        )


def test_ids_of_nobody_count_nothing(rng):
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, ranks=2)
    x, ids, weights = routed(rng, 8)
    ids[3] = -1
    ids[5, 1] = EXPERTS
    out = forward(runtime, x, ids, weights)
    np.testing.assert_allclose(out, reference(gate_up, down, x, ids, weights), rtol=1e-4, atol=1e-5)
    assert not out[3].any()
    assert runtime.load().sum() == 8 * TOP_K - TOP_K - 1


def test_load_and_placement(rng):
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, ranks=2)
    x, ids, weights = routed(rng, 40)
    before = forward(runtime, x, ids, weights)
    wanted = np.bincount(ids.ravel(), minlength=EXPERTS)
    assert np.array_equal(runtime.load(), wanted[None])
    runtime.place(0, [5, 4, 3, 2, 0, 1, 0, 3])  # two replicas
    assert np.array_equal(forward(runtime, x, ids, weights), before)
    assert np.array_equal(runtime.load(), 2 * wanted[None])
    runtime.place(0, [])
    assert np.array_equal(forward(runtime, x, ids, weights), before)
    runtime.reset_load()
    assert not runtime.load().any()


def test_layers_are_apart(rng):
    first, second = arrays(rng), arrays(rng)
    runtime = runtime_of(*first, ranks=2)
    x, ids, weights = routed(rng, 4)
    forward(runtime, x, ids, weights)
    assert runtime.add_layer(trimtab.ExpertWeights(*second, format="f32")) == 1
    np.testing.assert_allclose(
        forward(runtime, x, ids, weights, layer=1),
        reference(*second, x, ids, weights),
        rtol=1e-4,
        atol=1e-5,
    )
    assert runtime.num_layers == 2
    assert runtime.nbytes >= 2 * (first[0].nbytes + first[1].nbytes)


def test_mistakes_are_value_errors_with_the_library_s_text(rng):
    gate_up, down = arrays(rng)
    with pytest.raises(
        ValueError,
        match=r"gate_up \[6, 48, 32\] and down \[6, 24, 32\] are not those of gated experts",
    ):
        trimtab.ExpertWeights(gate_up, down.swapaxes(1, 2).copy())
    with pytest.raises(ValueError, match="unknown weight format 'w9a9'"):
        trimtab.ExpertWeights(gate_up, down, format="w9a9")
    with pytest.raises(ValueError, match='activation "relu" is not known'):
        trimtab.ExpertWeights(gate_up, down, activation="relu")
    with pytest.raises(ValueError, match="top_k must be in"):
        runtime_of(gate_up, down, top_k=7)
    with pytest.raises(ValueError, match="dispatcher"):
        runtime_of(gate_up, down, dispatcher="pigeon")
    runtime = runtime_of(gate_up, down)
    x, ids, weights = routed(rng, 4)
    with pytest.raises(ValueError, match=r"ids is \[4, 2\], not \[4, 3\]"):
        forward(runtime, x, ids[:, :2].copy(), weights)
    with pytest.raises(ValueError, match="layer 1 is not there"):
        forward(runtime, x, ids, weights, layer=1)
    with pytest.raises(ValueError, match="x and out must be F32 or BF16, not F64"):
        runtime.forward(0, x.astype(np.float64), ids, weights, np.empty_like(x))
    with pytest.raises(ValueError, match="ranks"):
        runtime_of(gate_up, down, ranks=0)
    with pytest.raises(ValueError, match="can't be dealt evenly"):
        runtime_of(gate_up, down, ranks=2).place(0, [0, 1, 2, 3, 4, 5, 0])
    with pytest.raises(ValueError, match="^expert 0: the gate weight: weight 0 of row 0 is nan$"):
        trimtab.ExpertWeights(np.full_like(gate_up, np.nan), down, format="w8a8")
    broken = down.copy()
    broken[4, 2, 5] = np.inf
    with pytest.raises(ValueError, match="^expert 4: the down weight: weight 5 of row 2 is inf$"):
        trimtab.ExpertWeights(gate_up, broken, format="mxfp8", threads=2)
    broken[4, 2, 5] = 70000
    with pytest.raises(ValueError, match="more than f16 can hold"):
        trimtab.ExpertWeights(gate_up, broken, format="f16")


def test_out_must_be_apart_from_what_is_read(rng):
    runtime = runtime_of(*arrays(rng), ranks=2)
    x, ids, weights = routed(rng, 4)
    memory = np.zeros((12, HIDDEN), np.float32)
    memory[:4] = x
    for first in (0, 1, 3):
        with pytest.raises(ValueError, match="x and out overlap"):
            runtime.forward(0, memory[:4], ids, weights, memory[first : first + 4])
    inside = memory[4:8].reshape(-1)[: 4 * TOP_K].reshape(4, TOP_K)
    with pytest.raises(ValueError, match="out overlaps ids or weights"):
        runtime.forward(0, x, ids, inside, memory[4:8])
    wide = np.zeros((4, 2 * HIDDEN), np.float32)
    wide[:, :HIDDEN] = x
    runtime.forward(0, wide[:, :HIDDEN], ids, weights, wide[:, HIDDEN:])
    np.testing.assert_array_equal(wide[:, HIDDEN:], forward(runtime, x, ids, weights))


def test_threads_may_share_a_runtime(rng):
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, ranks=2)
    calls = [routed(rng, n) for n in (1, 5, 9, 13)]
    wanted = [forward(runtime, *call) for call in calls]
    wrong = []

    def body(i):
        for _ in range(50):
            if not np.array_equal(forward(runtime, *calls[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_during_a_call(rng):
    """A thread that waits for the GIL gets it while a call is in flight."""
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, max_tokens=64)
    x, ids, weights = routed(rng, 40000)
    turns, stop = [0], threading.Event()

    def count():
        while not stop.wait(0.001):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns[0]
    forward(runtime, x, ids, weights)
    during = turns[0] - before
    stop.set()
    thread.join()
    assert during > 0


def test_what_is_asked_during_a_call_is_answered(rng):
    """A call takes the GIL between passes; whoever waits for the call must not hold it."""
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, max_tokens=16)
    call = routed(rng, 3000)
    threads = [
        threading.Thread(target=forward, args=(runtime, *call), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert runtime.load().shape == (1, EXPERTS)
        assert runtime.num_layers == 1 and runtime.nbytes > 0 and runtime.workspace_nbytes >= 0
        assert runtime.thread_source in ("own", "openmp")
    runtime.reset_load()
    assert not runtime.load().any()


def test_ctrl_c_ends_a_long_call(rng):
    gate_up, down = arrays(rng)
    runtime = runtime_of(gate_up, down, ranks=2, max_tokens=2)
    x, ids, weights = routed(rng, 2000)
    x, ids, weights = (np.tile(a, (200, 1)) for a in (x, ids, weights))
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        forward(runtime, x, ids, weights)
    timer.join()
    # and the runtime still works
    x, ids, weights = routed(rng, 5)
    np.testing.assert_allclose(
        forward(runtime, x, ids, weights),
        reference(gate_up, down, x, ids, weights),
        rtol=1e-4,
        atol=1e-5,
    )


def _in_child(runtime, weights, call, queue):
    try:
        forward(runtime, *call)
        queue.put("no error")
    except RuntimeError as error:
        queue.put(str(error))
    queue.put(forward(trimtab.MoeRuntime([weights], TOP_K, ranks=2), *call))


@pytest.mark.parametrize("share_openmp", [False, True])
def test_the_child_of_a_fork_is_refused_but_may_make_its_own(rng, share_openmp):
    weights = trimtab.ExpertWeights(*arrays(rng), format="f32")
    runtime = trimtab.MoeRuntime([weights], TOP_K, ranks=2, share_openmp=share_openmp)
    call = routed(rng, 5)
    wanted = forward(runtime, *call)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(runtime, weights, call, queue))
    child.start()
    assert "forked from it" in queue.get(timeout=60)
    assert np.array_equal(queue.get(timeout=60), wanted)
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(forward(runtime, *call), wanted)
