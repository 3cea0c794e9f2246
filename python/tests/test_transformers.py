# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with their experts in Trimtab, against transformers' own eager experts."""

import contextlib
import copy
import fcntl
import os
import pickle
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
try:
    import trimtab
    import trimtab.transformers as tt
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

# The models are too small for threads to be of use.
torch.set_num_threads(1)

REPO = Path(__file__).resolve().parents[2]
TINY_MOE = REPO / "models" / "tiny-moe"

COMMON = dict(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
LATENT = dict(
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    moe_intermediate_size=32,
    intermediate_size=40,
    first_k_dense_replace=1,
)
FAMILIES = {
    "mixtral": dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=48),
    "qwen2_moe": dict(
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        intermediate_size=40,
        decoder_sparse_step=1,
        norm_topk_prob=False,
    ),
    "qwen3_moe": dict(
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=32,
        intermediate_size=40,
        head_dim=16,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    ),
    "olmoe": dict(
        num_key_value_heads=4, num_experts=8, num_experts_per_tok=3, intermediate_size=32
    ),
    "deepseek_v2": LATENT
    | dict(
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=2,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
    ),
    "deepseek_v3": LATENT
    | dict(
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    ),
    "glm4_moe": dict(
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        n_shared_experts=1,
        intermediate_size=40,
        n_group=1,
        topk_group=1,
        head_dim=16,
        first_k_dense_replace=1,
        norm_topk_prob=True,
    ),
    "gpt_oss": dict(
        num_local_experts=8,
        num_experts_per_tok=3,
        intermediate_size=48,
        head_dim=16,
        sliding_window=6,
        swiglu_limit=1.0,
        swiglu_alpha=1.5,
    ),
}


def make_model(family, dtype=torch.float32):
    config = transformers.AutoConfig.for_model(family, **(COMMON | FAMILIES[family]))
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and scores too, all large enough to be seen
            if parameter.dim() > 1 or (parameter == 0).all():
                parameter.normal_(std=0.15)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.15)
    model.to(dtype)
    model.set_experts_implementation("eager")
    return model


@pytest.fixture
def ids():
    return torch.randint(0, 96, (2, 11), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids, use_cache=False).logits.float()


def distance(a, b):
    return (torch.linalg.norm(a - b) / torch.linalg.norm(b)).item()


def num_moe_layers(family):
    return 1 if "first_k_dense_replace" in FAMILIES[family] else 2


@pytest.mark.parametrize("ranks, threads", [(1, 2), (2, 1), (3, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_f32(family, ranks, threads, ids):
    model = make_model(family)
    wanted = logits(model, ids)
    report = tt.enable(model, ranks=ranks, threads=threads)
    assert len(report.layers) == num_moe_layers(family) and not report.left
    found = logits(model, ids)
    assert (found - wanted).abs().max() < 1e-4 * max(1.0, wanted.abs().max().item())
    assert report.runtimes[0].load().sum() == ids.numel() * report.runtimes[0].top_k * len(
        report.layers
    )


def test_row_budgets_change_no_bit(ids):
    original = make_model("qwen3_moe")
    rows, found = [], []
    for budget in (0, 1):
        model = copy.deepcopy(original)
        report = tt.enable(model, ranks=3, row_budget=budget)
        found.append(logits(model, ids))
        rows.append(report.runtimes[0].row_budget)
    assert torch.equal(found[0], found[1]) and rows[0] == 0 < rows[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_bf16(family, ids):
    """Not farther from the same model in f32 than transformers' own experts in bf16, with some
    room."""
    model = make_model(family, torch.bfloat16)
    exact = logits(copy.deepcopy(model).float(), ids)
    eager = distance(logits(model, ids), exact)
    tt.enable(model, ranks=2)
    assert distance(logits(model, ids), exact) < 1.5 * eager + 1e-3


@pytest.mark.parametrize("quantization, tolerance", [("w8a8", 0.1), ("w4a8", 0.5), ("mxfp8", 0.2)])
def test_quantised(quantization, tolerance, ids):
    model = make_model("qwen3_moe", torch.bfloat16)
    wanted = logits(model, ids)
    report = tt.enable(model, ranks=2, quantization=quantization)
    assert report.runtimes == [] and report.groups[0].layers[0].format == quantization
    assert 0 < distance(logits(model, ids), wanted) < tolerance


def test_half_precision(ids):
    model = make_model("mixtral", torch.float16)
    wanted = logits(model, ids)
    tt.enable(model, ranks=2)
    assert distance(logits(model, ids), wanted) < 5e-3


def test_implementation_by_name(ids, tmp_path):
    model = make_model("qwen3_moe")
    wanted = logits(model, ids)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, experts_implementation="trimtab", attn_implementation="eager"
    ).eval()
    torch.testing.assert_close(logits(loaded, ids), wanted, rtol=1e-4, atol=1e-4)
    modules = [module for _, module in tt._experts_modules(loaded)]
    assert all(module.gate_up_proj.device.type == "meta" for module in modules)
    assert len({id(module._trimtab.group) for module in modules}) == 1, "layers share a runtime"
    with pytest.raises(ValueError, match="already"):
        tt.enable(loaded)


def test_originals_are_given_back_or_kept(ids):
    model = make_model("gpt_oss")
    size = sum(p.nbytes for n, p in model.named_parameters() if ".experts." in n)
    kept = copy.deepcopy(model)
    report = tt.enable(model)
    experts = [p for n, p in model.named_parameters() if ".experts." in n]
    assert len(experts) == 8 and all(p.device.type == "meta" for p in experts)
    assert report.original_bytes == size
    assert report.packed_bytes >= size
    assert "freed" in str(report) and "2 layers of 8 experts, 64 -> 48, f32" in str(report)
    report = tt.enable(kept, free_originals=False)
    assert "kept" in str(report)
    ours = logits(kept, ids)
    kept.set_experts_implementation("eager")
    torch.testing.assert_close(logits(kept, ids), ours, rtol=1e-4, atol=1e-4)


def test_experts_that_are_none_of_ours_are_left_with_a_reason(ids, caplog):
    model = make_model("mixtral")
    wanted = logits(model, ids)
    odd = [module for _, module in tt._experts_modules(model)][1]
    odd._apply_gate = (
        lambda gate_up: torch.tanh(gate_up.chunk(2, dim=-1)[0]) * gate_up.chunk(2, dim=-1)[1]
    )
    report = tt.enable(model)
    assert list(report.left) == ["model.layers.1.mlp.experts"]
    assert "no activation of Trimtab's" in report.left["model.layers.1.mlp.experts"]
    assert len(report.layers) == 1 and "left to transformers" in str(report)
    assert logits(model, ids).shape == wanted.shape

    model = make_model("mixtral").double()
    wanted = logits(model, ids)
    model.set_experts_implementation("trimtab")
    assert torch.equal(logits(model, ids), wanted)
    assert "torch.float64" in caplog.text


def test_models_without_experts_and_other_things():
    config = transformers.AutoConfig.for_model(
        "llama",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    assert tt.enable(transformers.AutoModelForCausalLM.from_config(config)).layers == []
    with pytest.raises(TypeError, match="Linear"):
        tt.enable(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no option rank;"):
        tt.enable(make_model("mixtral"), rank=2)
    with pytest.raises(ValueError, match="unknown weight format 'w9'"):
        tt.enable(make_model("mixtral"), quantization="w9")


def test_placement(ids):
    model = make_model("mixtral")
    wanted = logits(model, ids)
    placement = torch.tensor([[7, 6, 5, 4, 3, 2, 1, 0, 0, 1], [0, 1, 2, 3, 3, 4, 5, 6, 7, 7]])
    tt.enable(model, ranks=2, eplb=placement)
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)
    model = make_model("mixtral")
    for wrong, text in (
        ({"eplb": placement[:1]}, "eplb places 1 layers, the model has 2"),
        ({"eplb": placement[:, :9]}, "eplb, layer 0: 9 slots hold 8 experts"),
        ({"eplb": placement[:, 1:9]}, "eplb, layer 0: 8 slots hold 7 experts"),
        ({"dispatcher": "pigeon"}, "pigeon"),
        ({"max_tokens": 1}, "max_tokens must be at least the number of ranks"),
    ):
        with pytest.raises(ValueError, match=text):
            tt.enable(model, ranks=2, **wrong)
    torch.testing.assert_close(logits(model, ids), wanted)  # nothing has happened to it


def test_balancing_levels_the_ranks_and_changes_no_bit():
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY_MOE, dtype=torch.float32).eval()
    still = copy.deepcopy(model)
    tt.enable(still, ranks=4, threads=1)
    report = tt.enable(model, ranks=4, threads=1, eplb={"interval": 6, "policy_preset": "fast"})
    ids = torch.tensor(
        [[256, *b"The evening was cold, and Mr. Darcy looked at her sister and said that he"]]
    )
    for _ in range(60):
        assert torch.equal(logits(model, ids), logits(still, ids))
    balancer = report.balancers[0]
    assert balancer.replans >= 1 and balancer.moves > 0 and balancer.failed == 0
    loads = trimtab.Load(report.runtimes[0].load())
    linear = trimtab.default_placement(4, 32, [8] * 4)
    level = trimtab.par_per_step(balancer.placement, loads)[0][0]
    assert level < 1 + (trimtab.par_per_step(linear, loads)[0][0] - 1) / 2


def test_settings_of_balancing_are_checked_before_anything_is_packed(ids):
    model = make_model("mixtral")
    wanted = logits(model, ids)
    for eplb, text in (
        ("dinamic", 'eplb is None, "dynamic"'),
        ({"intervall": 3}, "intervall"),
        ({"interval": 0}, "interval must be"),
        ({"phase": "decode"}, "not told apart by phase"),
    ):
        with pytest.raises(ValueError, match=text):
            tt.enable(model, ranks=2, eplb=eplb)
    torch.testing.assert_close(logits(model, ids), wanted)


def experts_of(model):
    return dict(tt._experts_modules(model))


def scaled(model, factor):
    """A copy of the model whose experts' weights are multiplied."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for module in experts_of(other).values():
            module.gate_up_proj.mul_(factor)
    return other


CHANGES = {
    "load_state_dict": lambda model, new: model.load_state_dict(new.state_dict()),
    "assign": lambda model, new: model.load_state_dict(new.state_dict(), assign=True),
    "copy_": lambda model, new: [a.copy_(b) for a, b in zip(model.parameters(), new.parameters())],
    "data": lambda model, new: [
        a.data.copy_(b) for a, b in zip(model.parameters(), new.parameters())
    ],
    "setattr": lambda model, new: [
        setattr(a, "gate_up_proj", b.gate_up_proj)
        for a, b in zip(experts_of(model).values(), experts_of(new).values())
    ],
}


@pytest.mark.parametrize("how", CHANGES)
def test_changed_weights_are_noticed_and_packed_again(how, ids):
    model = make_model("qwen3_moe")
    new = scaled(model, 0.5)
    wanted = logits(new, ids)
    tt.enable(model, ranks=2, free_originals=False)
    logits(model, ids)
    with torch.no_grad():
        CHANGES[how](model, new)
    with pytest.raises(RuntimeError, match="layers.0.mlp.experts: gate_up_proj has changed"):
        logits(model, ids)
    report = tt.enable(model, ranks=2, free_originals=False)
    assert len(report.layers) == 2
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)


def test_copies_notice_changes_of_their_own_weights(ids):
    model = make_model("mixtral")
    tt.enable(model, free_originals=False)
    wanted = logits(model, ids)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, ids), wanted)
    with torch.no_grad():
        experts_of(other)["model.layers.1.mlp.experts"].down_proj.mul_(2)
    with pytest.raises(RuntimeError, match="layers.1.mlp.experts: down_proj has changed"):
        logits(other, ids)
    assert torch.equal(logits(model, ids), wanted)
    with pytest.raises(RuntimeError, match="has changed"):  # a copy made when it was too late
        logits(copy.deepcopy(other), ids)


def test_new_weights_have_no_place_where_the_originals_were_given_back(ids):
    model = make_model("mixtral")
    new = scaled(model, 0.5)
    wanted = logits(new, ids)
    tt.enable(model)
    with pytest.raises(RuntimeError, match="gate_up_proj was given back when Trimtab packed"):
        model.load_state_dict(new.state_dict())
    with torch.no_grad():
        experts_of(model)["model.layers.0.mlp.experts"].gate_up_proj.mul_(0.5)
    with pytest.raises(RuntimeError, match="has changed"):
        logits(model, ids)
    with pytest.raises(ValueError, match="can't be packed again; load the model anew"):
        tt.enable(model)
    # New tensors in the places of all that were given back can be packed.
    model.load_state_dict(new.state_dict(), assign=True)
    with pytest.raises(RuntimeError, match="has changed"):
        logits(model, ids)
    tt.enable(model)
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", ["eager", "grouped_mm", "batched_mm"])
def test_another_implementation_has_no_weights_that_were_given_back(other, ids):
    model = make_model("qwen3_moe")
    tt.enable(model)
    wanted = logits(model, ids)
    model.set_experts_implementation(other)
    with pytest.raises(RuntimeError, match=f'"{other}" has no weights: they were given back'):
        logits(model, ids)
    model.set_experts_implementation("trimtab")
    assert torch.equal(logits(model, ids), wanted)


@pytest.mark.parametrize("free_originals", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_that_can_not_be_packed_stays_as_it_was(layer, free_originals, ids):
    model = make_model("qwen3_moe")
    module = list(experts_of(model).values())[layer]
    with torch.no_grad():
        module.down_proj[3, 2, 5] = float("nan")
    before = module.down_proj
    report = tt.enable(model, ranks=2, quantization="w8a8", free_originals=free_originals)
    name = f"model.layers.{layer}.mlp.experts"
    assert list(report.left) == [name] and len(report.layers) == 1
    assert re.search(r"can't be packed: expert 3: .*nan", report.left[name]), report.left[name]
    assert module.down_proj is before
    assert model(ids).logits.shape == (2, 11, 96)


def test_an_interruption_leaves_a_model_that_answers(ids, monkeypatch):
    model = make_model("qwen3_moe")
    wanted = logits(model, ids)
    pack = tt._pack
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return pack(*arguments)

    monkeypatch.setattr(tt, "_pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tt.enable(model)
    monkeypatch.setattr(tt, "_pack", pack)
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"ranks": 0}, "ranks must be at least 1, is 0"),
        ({"ranks": -1}, "ranks must be at least 1, is -1"),
        ({"threads": 0}, "threads of a rank must be at least 1, is 0"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"quantization": ""}, "unknown weight format ''"),
        ({"dispatcher": ""}, "dispatcher"),
        ({"row_budget": -1}, "row budget of -1"),
        ({"eplb": ""}, "eplb is None"),
    ],
)
def test_values_that_an_option_can_not_have(wrong, text, ids):
    model = make_model("mixtral")
    wanted = logits(model, ids)
    for call in (lambda: tt.enable(model, **wrong), lambda: tt.configure(**wrong)):
        with pytest.raises(ValueError, match=text):
            call()
    assert tt._defaults == tt.Options()
    torch.testing.assert_close(logits(model, ids), wanted, rtol=0, atol=0)


OTHERS = {
    "jetmoe": (
        dict(num_local_experts=4, num_experts_per_tok=2, kv_channels=16, intermediate_size=32),
        ["self_attention.experts.input_linear", "mlp.output_linear"],
    ),
    "llama4_text": (
        dict(
            num_local_experts=4,
            num_experts_per_tok=1,
            intermediate_size=32,
            intermediate_size_mlp=32,
            head_dim=16,
            interleave_moe_layer_step=1,
        ),
        ["feed_forward.experts"],
    ),
    "switch_transformers": (
        dict(d_model=32, d_kv=8, d_ff=32, num_experts=4, num_layers=2, num_heads=4),
        ["mlp.experts"],
    ),
}


@pytest.mark.parametrize("family", OTHERS)
def test_experts_that_are_not_dispatched_by_name_are_listed(family):
    sizes, names = OTHERS[family]
    config = transformers.AutoConfig.for_model(family, **(COMMON | sizes))
    kind = (
        transformers.AutoModelForSeq2SeqLM
        if family == "switch_transformers"
        else transformers.AutoModelForCausalLM
    )
    report = tt.enable(kind.from_config(config))
    assert report.layers == []
    for name in names:
        assert any(left.endswith(name) for left in report.left), list(report.left)
    assert all("does not dispatch it" in reason for reason in report.left.values())


def test_layers_with_the_same_tensors_are_packed_once(ids):
    model = make_model("mixtral")
    first, second = experts_of(model).values()
    second.gate_up_proj, second.down_proj = first.gate_up_proj, first.down_proj
    wanted = logits(model, ids)
    size = first.gate_up_proj.nbytes + first.down_proj.nbytes
    report = tt.enable(model, ranks=2)
    torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)
    assert len(report.layers) == 2 and report.original_bytes == size
    assert report.packed_bytes < 1.5 * size
    assert second.gate_up_proj.device.type == "meta"


def test_backward_is_refused(ids):
    model = make_model("mixtral")
    tt.enable(model)
    loss = model(input_ids=ids).logits.sum()
    with pytest.raises(RuntimeError, match="no backward pass"):
        loss.backward()


def test_copies_share_the_weights_and_pickles_are_refused(ids):
    model = make_model("mixtral")
    tt.enable(model)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, ids), logits(model, ids))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(model)


THREADS = """
import sys, torch, os
import trimtab.transformers as tt
sys.path.insert(0, sys.argv[1])
from test_transformers import make_model, logits
torch.set_num_threads(3)
ids = torch.arange(60).reshape(2, 30)
count = lambda: len(os.listdir("/proc/self/task"))
model = make_model("qwen3_moe")
torch.randn(1000, 1000) @ torch.randn(1000, 1000)
logits(model, ids)
before = count()
report = tt.enable(model, ranks=int(sys.argv[2]))
logits(model, ids)
print(report.runtimes[0].thread_source, report.options.ranks * report.options.threads, count() -
before) """


@pytest.mark.parametrize("ranks", [1, 3])
def test_trimtab_runs_on_the_threads_of_torch(ranks):
    """In a process of its own: how many threads there are depends on what has run before."""
    if "OpenMP" not in torch.__config__.parallel_info().split("ATen parallel backend:")[1]:
        pytest.skip("this torch has no OpenMP")
    command = [sys.executable, "-c", THREADS, str(Path(__file__).parent), str(ranks)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout == "openmp 3 0\n", run.stdout + run.stderr


def greedy(model, prompt, **options):
    ids = torch.tensor([[256, *prompt.encode()]])
    with torch.inference_mode():
        return model.generate(
            ids, max_new_tokens=64, min_new_tokens=64, do_sample=False, **options
        )[0].tolist()


def test_tiny_moe_writes_the_same_64_tokens():
    prompts = (TINY_MOE / "prompts.txt").read_text().splitlines()[::6]
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(TINY_MOE, dtype=torch.float32, experts_implementation="eager").eval()
    wanted = [greedy(model, prompt) for prompt in prompts]
    for ranks in (1, 2):
        ours = copy.deepcopy(model)
        tt.enable(ours, ranks=ranks)
        assert [greedy(ours, prompt) for prompt in prompts] == wanted


def test_snippets_of_the_guide(monkeypatch, capsys):
    """docs/transformers.md as it is written, in one go."""
    monkeypatch.chdir(REPO)
    monkeypatch.setattr(tt, "_defaults", tt.Options())
    snippets = re.findall(
        r"^```python\n(.*?)^```", (REPO / "docs/transformers.md").read_text(), re.S | re.M
    )
    # The server is a script of its own: tests/live/test_serve.py.
    snippets = [snippet for snippet in snippets if "transformers.cli.serve" not in snippet]
    assert len(snippets) == 3
    names = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/transformers.md", "exec"), names)
        if "experts_implementation" in snippet:
            assert logits(names["model"], torch.tensor([[256, 65, 66]])).isfinite().all()
    assert "4 layers of 32 experts, 192 -> 64, w8a8" in capsys.readouterr().out
    assert names["out"].any()


def test_generate_command():
    pytest.importorskip("tqdm")
    prompt = "The evening was"
    command = [
        sys.executable,
        "-m",
        "trimtab.generate",
        str(TINY_MOE),
        "--prompt",
        prompt,
        "--dtype",
        "float32",
    ]
    terminal, bar = pty.openpty()
    fcntl.ioctl(
        bar, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0)
    )  # without a width there is no bar
    run = subprocess.Popen(
        [*command, "--ranks", "2", "--max-new-tokens", "12"],
        stdout=subprocess.PIPE,
        stderr=bar,
        text=True,
    )
    os.close(bar)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 4096):
            seen += piece
    text = run.stdout.read().removesuffix("\n")
    assert run.wait() == 0, seen
    assert text.startswith(prompt) and len(text.encode()) == len(prompt) + 12
    assert b"Trimtab runs the experts of 4 layers on 2 x" in seen and b"12/12" in seen

    run = subprocess.run(
        [*command, "--max-new-tokens", "2", "--quiet"], capture_output=True, text=True
    )
    assert run.returncode == 0 and "Trimtab" not in run.stderr and "2/2" not in run.stderr
    # The text comes up to a stop, and no bar stands in it on a terminal.
    word = text[len(prompt) :].split()[1]
    run = subprocess.run(
        [*command, "--max-new-tokens", "60", "--quiet", "--stop", word, "--stop", "\n"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    end = text.index(word, len(prompt))
    assert run.stdout == text[:end] + "\n"
    # The most likely token is drawn at any temperature where it is the only one.
    run = subprocess.run(
        [*command, "--max-new-tokens", "12", "--quiet", "--temperature", "2", "--top-k", "1"],
        capture_output=True,
        text=True,
    )
    assert run.stdout == text + "\n"
    run = subprocess.run([*command, "--top-p", "0.5"], capture_output=True, text=True)
    assert run.returncode == 1 and "no effect without --temperature" in run.stderr

    run = subprocess.run([*command, "--quantization", "w3"], capture_output=True, text=True)
    assert run.returncode == 1 and "'w3'" in run.stderr and "Traceback" not in run.stderr
