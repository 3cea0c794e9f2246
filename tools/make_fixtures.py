# SPDX-License-Identifier: Apache-2.0
"""Reference checkpoints and outputs for the tests, made with torch and transformers.

    fixtures  write tests/fixtures/checkpoints: a tiny random model of every
              supported family with what transformers computes for it
    live      write one such folder anywhere, from another seed
    expected  logits and greedy tokens of a whole model for byte prompts

A fixture folder holds config.json, model.safetensors and expected.safetensors:

    input_ids                   [tokens] i32, one sequence
    logits                      [tokens, vocab] f32, families of the decoder
    layers.{L}.moe.input        [tokens, hidden] f32, for every MoE layer
    layers.{L}.moe.output       [tokens, hidden] f32, shared experts included
    layers.{L}.moe.logits       [tokens, experts] f32 of the router
    layers.{L}.moe.top_k_ids    [tokens, top_k] i32
    layers.{L}.moe.top_k_weights [tokens, top_k] f32

The order of a token's picks is the one that transformers gives, which for
some families is no order: compare them as sets.  Everything is computed in
f32 with the eager attention and experts, from the weights as stored; those
that are quantised are dequantised first (quantise.py).
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tools"))
import quantise  # noqa: E402

CHECKPOINTS = REPO / "tests" / "fixtures" / "checkpoints"

TOKENS = 14
BOS = 256  # tiny-moe: token id = byte value, 256 starts a text

# The smallest distance between the last score picked and the first one left, so that rounding can't
# change a pick.
MARGIN = 1e-3

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LATENT_ATTENTION = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}


def compressed(kind, groups, ignore, rows=None):
    """quantization_config of compressed-tensors; groups: of (targets, weights); rows: how
    activations are quantised."""
    return dict(
        quant_method="compressed-tensors",
        format=kind,
        quantization_status="compressed",
        ignore=ignore,
        kv_cache_scheme=None,
        global_compression_ratio=None,
        config_groups={
            f"group_{i}": dict(
                targets=targets, weights=weights, input_activations=rows, output_activations=None
            )
            for i, (targets, weights) in enumerate(groups)
        },
    )


PROJECTIONS = r"\.(self_attn\.[qkvo]_proj|experts\.\d+\.\w+)$"

# What a family's fixture is there to show is in its config. dtype: of the stored weights; layout:
# of config.json, "v4" as published checkpoints have it, "v5" as transformers 5 writes it; merged:
# the tensor names of transformers 5; text_config: nested as in multimodal wrappers; quantised: how
# the weights of modules whose names match are stored (quantise.py), block None standing for a whole
# side; quantization: what config.json says of it.
# fmt: off
FIXTURES = {
    "mixtral": dict(
        model_type="mixtral", dtype="float32", layout="v4", decoder=True,
        config=dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=24,
                    sliding_window=None),
    ),
    "mixtral_merged": dict(
        model_type="mixtral", dtype="bfloat16", layout="v5", decoder=True, merged=True,
        config=dict(num_local_experts=8, num_experts_per_tok=3, intermediate_size=24,
                    sliding_window=5),
    ),
    "qwen2_moe": dict(
        model_type="qwen2_moe", dtype="float32", layout="v4", decoder=True,
        config=dict(
            num_hidden_layers=3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
            shared_expert_intermediate_size=24, intermediate_size=40, mlp_only_layers=[0],
            norm_topk_prob=False,
        ),
    ),
    "qwen3_moe": dict(
        model_type="qwen3_moe", dtype="float32", layout="v5", decoder=True,
        config=dict(
            num_experts=8, num_experts_per_tok=4, moe_intermediate_size=16, intermediate_size=40,
            head_dim=16,
            norm_topk_prob=True, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        ),
    ),
    "qwen3_moe_sparse": dict(
        model_type="qwen3_moe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            num_hidden_layers=4, num_experts=10, num_experts_per_tok=3, moe_intermediate_size=16,
            intermediate_size=40, head_dim=8, norm_topk_prob=False, attention_bias=True,
            decoder_sparse_step=2,
        ),
    ),
    "olmoe": dict(
        model_type="olmoe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            num_key_value_heads=4, num_experts=8, num_experts_per_tok=3, intermediate_size=16,
            clip_qkv=0.8,
            norm_topk_prob=False,
        ),
    ),
    # Contexts that are stretched: by yarn as published files have it, with the magnitude and the
    # boundaries that follow from the factor; linearly; and as Llama 3.
    "qwen3_moe_yarn": dict(
        model_type="qwen3_moe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, intermediate_size=40,
            head_dim=16,
            norm_topk_prob=True, rope_parameters=dict(
                rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=1e4,
            ),
        ),
    ),
    "mixtral_linear": dict(
        model_type="mixtral", dtype="bfloat16", layout="v5", decoder=True,
        config=dict(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, sliding_window=None,
            rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=1e4),
        ),
    ),
    "olmoe_llama3": dict(
        model_type="olmoe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            num_key_value_heads=4, num_experts=6, num_experts_per_tok=2, intermediate_size=16,
            norm_topk_prob=False, rope_parameters=dict(
                rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64, rope_theta=1e3,
            ),
        ),
    ),
    "deepseek_v2": dict(
        model_type="deepseek_v2", dtype="bfloat16", layout="v4",
        config=LATENT_ATTENTION | dict(
            first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3,
            moe_intermediate_size=16,
            n_shared_experts=2, intermediate_size=40, topk_method="group_limited_greedy", n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5, norm_topk_prob=False,
        ),
    ),
    "deepseek_v3": dict(
        model_type="deepseek_v3", dtype="float32", layout="v4",
        config=LATENT_ATTENTION | dict(
            first_k_dense_replace=1, n_routed_experts=16, num_experts_per_tok=4,
            moe_intermediate_size=16,
            n_shared_experts=1, intermediate_size=40, n_group=4, topk_group=2,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
        ),
        extra=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
                   num_nextn_predict_layers=0),
    ),
    "glm4_moe": dict(
        model_type="glm4_moe", dtype="bfloat16", layout="v5",
        config=dict(
            first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=16,
            n_shared_experts=1, intermediate_size=40, n_group=1, topk_group=1,
            routed_scaling_factor=1.25,
            norm_topk_prob=True, attention_bias=True, use_qk_norm=True, head_dim=8,
        ),
    ),
    "kimi_k2": dict(
        model_type="deepseek_v3", dtype="bfloat16", layout="v4", text_config="kimi_k2",
        config=LATENT_ATTENTION | dict(
            first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=4,
            moe_intermediate_size=16,
            n_shared_experts=1, intermediate_size=40, n_group=1, topk_group=1,
            routed_scaling_factor=2.827,
            norm_topk_prob=True,
        ),
        extra=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1),
    ),
    # The activation's limit is low enough to clamp, the alpha not the default.
    "gpt_oss": dict(
        model_type="gpt_oss", dtype="bfloat16", layout="v4",
        config=dict(
            num_local_experts=8, num_experts_per_tok=3, intermediate_size=24, head_dim=8,
            sliding_window=6,
            swiglu_limit=1.0, swiglu_alpha=1.5,
        ),
    ),
    # Blocks that are cut off at both sides.
    "qwen3_moe_fp8": dict(
        model_type="qwen3_moe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            hidden_size=40, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
            intermediate_size=40,
            head_dim=16, norm_topk_prob=True,
        ),
        quantised=[(PROJECTIONS, dict(format="fp8", block=(32, 16)))],
        quantization=dict(
            quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[32, 16],
            modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate",
                                    "model.layers.1.mlp.gate"],
        ),
    ),
    # Scales as powers of two; dense layers and shared experts too.
    "deepseek_v3_fp8": dict(
        model_type="deepseek_v3", dtype="bfloat16", layout="v4",
        config=LATENT_ATTENTION | dict(
            first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3,
            moe_intermediate_size=16,
            n_shared_experts=1, intermediate_size=40, n_group=4, topk_group=2,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
        ),
        extra=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1),
        quantised=[(r"\.(mlp|experts\.\d+|shared_experts)\.\w+_proj$",
                    dict(format="fp8", block=(128, 128), scale_dtype=torch.float8_e8m0fnu))],
        quantization=dict(
            quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
            weight_block_size=[128, 128], scale_fmt="ue8m0",
        ),
    ),
    "qwen2_moe_int8": dict(
        model_type="qwen2_moe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            intermediate_size=40, mlp_only_layers=[0], norm_topk_prob=False,
        ),
        quantised=[(r"_proj$", dict(format="int8", block=(1, None)))],
        quantization=compressed(
            "int-quantized",
            [(["Linear"],
              dict(num_bits=8, type="int", symmetric=True, strategy="channel", dynamic=False))],
            ["lm_head", "re:.*mlp.gate$", "re:.*mlp.shared_expert_gate$"],
            rows=dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True),
        ),
    ),
    "mixtral_fp8": dict(
        model_type="mixtral", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=24,
                    sliding_window=None),
        quantised=[
            (r"self_attn\.[qkvo]_proj$", dict(format="float8", block=(1, None))),
            (r"experts\.\d+\.w[123]$",
             dict(format="float8", block=(None, None), scale_dtype=torch.float32)),
        ],
        quantization=compressed(
            "float-quantized",
            [
                (["Linear"],
                 dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)),
                ([r"re:.*self_attn\.(q|k|v|o)_proj"],
                 dict(num_bits=8, type="float", symmetric=True, strategy="channel", dynamic=False)),
            ],
            ["lm_head", "re:.*block_sparse_moe.gate"],
        ),
    ),
    # As vLLM's first FP8 checkpoints: one scale a tensor, also of the rows.
    "mixtral_fp8_tensor": dict(
        model_type="mixtral", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=24,
                    sliding_window=None),
        quantised=[(r"(self_attn\.[qkvo]_proj|experts\.\d+\.w[123])$",
                    dict(format="float8", block=(None, None), scale_dtype=torch.float32))],
        input_scale=0.05,
        quantization=dict(quant_method="fp8", activation_scheme="static",
                          ignored_layers=["lm_head"]),
    ),
    # Only the weights are quantised.
    "olmoe_int4": dict(
        model_type="olmoe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(num_experts=8, num_experts_per_tok=3, intermediate_size=16,
                    norm_topk_prob=False),
        quantised=[(PROJECTIONS, dict(format="int4", block=(1, None)))],
        quantization=compressed(
            "pack-quantized",
            [(["Linear"],
              dict(num_bits=4, type="int", symmetric=True, strategy="channel", dynamic=False,
                   actorder=None))],
            ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
        ),
    ),
    # Zero points; neither columns nor rows fill their last word.
    "qwen3_moe_int4": dict(
        model_type="qwen3_moe", dtype="bfloat16", layout="v4", decoder=True,
        config=dict(
            hidden_size=36, num_experts=8, num_experts_per_tok=4, moe_intermediate_size=20,
            intermediate_size=40,
            head_dim=8, norm_topk_prob=True, num_attention_heads=3, num_key_value_heads=1,
        ),
        quantised=[(PROJECTIONS, dict(format="int4", block=(1, 4), symmetric=False))],
        quantization=compressed(
            "pack-quantized",
            [(["Linear"],
              dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=4,
                   dynamic=False,
                               actorder="weight"))],
            ["lm_head", "re:.*gate$"],
        ),
    ),
    # As Kimi K2 Thinking: only the routed experts.
    "kimi_k2_int4": dict(
        model_type="deepseek_v3", dtype="bfloat16", layout="v4", text_config="kimi_k2",
        config=LATENT_ATTENTION | dict(
            first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=64,
            n_shared_experts=1, intermediate_size=40, n_group=1, topk_group=1,
            routed_scaling_factor=2.827,
            norm_topk_prob=True,
        ),
        extra=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1),
        quantised=[(r"\.experts\.\d+\.\w+$",
                    dict(format="int4", block=(1, 32), shape_dtype=torch.int32))],
        quantization=compressed(
            "pack-quantized",
            [(["Linear"],
              dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32,
                   dynamic=False,
                               actorder=None))],
            ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
             r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
        ),
    ),
    "gpt_oss_mxfp4": dict(
        model_type="gpt_oss", dtype="bfloat16", layout="v4",
        config=dict(
            hidden_size=64, num_local_experts=6, num_experts_per_tok=2, intermediate_size=32,
            head_dim=8,
            sliding_window=6,
        ),
        quantised="mxfp4",
        quantization=dict(
            quant_method="mxfp4",
            modules_to_not_convert=[
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head",
            ],
        ),
    ),
}
# fmt: on


# ---------------------------------------------------------------- models


def randomise(model, seed):
    """Draw every parameter and buffer of the checkpoint, norms and biases too, so that none can
    hide."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            values = torch.randn(tensor.shape, generator=random)
            if name.endswith("e_score_correction_bias"):
                values = 0.3 * values
            elif name.endswith(("norm.weight", "layernorm.weight")):
                values = 1.0 + 0.3 * values
            elif name.endswith(("gate.weight", "router.weight")):
                values = values / 3.0
            elif "embed_tokens" in name:
                values = 0.7 * values
            elif tensor.dim() == 1 or name.endswith("_bias"):
                values = 0.3 * values
            else:
                values = values / tensor.shape[-1] ** 0.5
            tensor.copy_(values)


def moe_blocks(model):
    """The MoE blocks of a model by layer number."""
    layers = model.model.layers
    return {
        number: layer.mlp for number, layer in enumerate(layers) if hasattr(layer.mlp, "experts")
    }


def router_of(block):
    return block.router if hasattr(block, "router") else block.gate


def record(model, input_ids):
    """Run the model once; logits and what went in and out of each MoE block and its router."""
    found, hooks = {}, []
    for number, block in moe_blocks(model).items():
        key = f"layers.{number}.moe"

        def keep_block(_, inputs, output, key=key):
            output = output[0] if isinstance(output, tuple) else output
            found[f"{key}.input"] = inputs[0].flatten(0, -2)
            found[f"{key}.output"] = output.flatten(0, -2)

        def keep_router(_, __, output, key=key):
            found[f"{key}.logits"], found[f"{key}.top_k_weights"] = output[0], output[1]
            found[f"{key}.top_k_ids"] = output[2].to(torch.int32)

        hooks.append(block.register_forward_hook(keep_block))
        hooks.append(router_of(block).register_forward_hook(keep_router))
    with torch.no_grad():
        found["logits"] = model(input_ids[None]).logits[0]
    for hook in hooks:
        hook.remove()
    found["input_ids"] = input_ids.to(torch.int32)
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


def smallest_margin(model, found):
    """The least distance, over tokens and layers, between a score picked and one left, and between
    groups."""
    config, margin = model.config, float("inf")
    for number, block in moe_blocks(model).items():
        logits = found[f"layers.{number}.moe.logits"]
        bias = getattr(router_of(block), "e_score_correction_bias", None)
        scores = logits.softmax(-1) if bias is None else logits.sigmoid() + bias
        groups = getattr(config, "n_group", None) or 1
        if groups > 1:
            grouped = scores.view(len(scores), groups, -1)
            of_group = (
                grouped.max(-1).values if bias is None else grouped.topk(2, -1).values.sum(-1)
            )
            order = of_group.sort(-1, descending=True)
            margin = min(
                margin,
                (order.values[:, config.topk_group - 1] - order.values[:, config.topk_group]).min(),
            )
            dropped = torch.zeros_like(of_group, dtype=torch.bool).scatter_(
                1, order.indices[:, config.topk_group :], True
            )
            scores = grouped.masked_fill(dropped[..., None], float("-inf")).flatten(1)
            # Some versions mask dropped groups with 0.0, DeepSeek's own code with -inf: both agree
            # on these numbers.
            margin = min(margin, scores.topk(config.num_experts_per_tok, -1).values.min())
        best = scores.sort(-1, descending=True).values
        k = config.num_experts_per_tok
        margin = min(margin, (best[:, k - 1] - best[:, k]).min())
    return float(margin)


def load_f32(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def make_config(spec):
    return AutoConfig.for_model(spec["model_type"], **(COMMON | spec["config"]))


def save_model(spec, folder, seed):
    """A random model as transformers saves it, in the stored element type."""
    model = AutoModelForCausalLM.from_config(make_config(spec))
    randomise(model, seed)
    model.to(getattr(torch, spec["dtype"])).save_pretrained(
        folder, save_original_format=not spec.get("merged", False)
    )


# ---------------------------------------------------------------- quantising


def quantise_matrix(matrix, how):
    """The tensors of one module, and what they stand for."""
    how = dict(how)
    block = tuple(side or size for side, size in zip(how.pop("block"), matrix.shape))
    kind = how.pop("format")
    if kind == "fp8":
        tensors = quantise.quantise_fp8_blocks(matrix, block, **how)
    else:
        tensors = quantise.quantise_compressed(matrix, kind, block, **how)
    return tensors, quantise.dequantise(tensors, block)


def quantise_experts_of_gpt_oss(name, matrices):
    """The same for the experts' matrices [experts, in, out] of a layer."""
    tensors = quantise.quantise_mxfp4(matrices.transpose(1, 2).contiguous())
    meant = (
        quantise.dequantise_mxfp4(tensors["blocks"], tensors["scales"]).transpose(1, 2).contiguous()
    )
    return {f"{name}_{part}": tensor for part, tensor in tensors.items()}, meant


def quantise_checkpoint(spec, tensors):
    """(stored, meant): the tensors of the quantised checkpoint, and the plain ones that it stands
    for."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name], meant[name] = tensor, tensor.float()
        if spec["quantised"] == "mxfp4":
            if re.search(r"experts\.(gate_up|down)_proj$", name):
                parts, meant[name] = quantise_experts_of_gpt_oss(name, stored.pop(name).float())
                stored |= parts
            continue
        module = name.removesuffix(".weight")
        how = next(
            (
                how
                for pattern, how in spec["quantised"]
                if name != module and re.search(pattern, module)
            ),
            None,
        )
        if how is not None:
            parts, meant[name] = quantise_matrix(stored.pop(name).float(), how)
            stored |= {f"{module}.{part}": part_tensor for part, part_tensor in parts.items()}
            if "input_scale" in spec:
                stored[f"{module}.input_scale"] = torch.tensor(spec["input_scale"])
    return stored, meant


def quantise_saved(spec, folder):
    """Put the weights that the quantised ones stand for into a saved model; return the quantised
    ones."""
    file = Path(folder) / "model.safetensors"
    stored, meant = quantise_checkpoint(spec, load_file(file))
    save_file(meant, file, metadata={"format": "pt"})
    return stored


# ---------------------------------------------------------------- fixtures


def published_config(spec, config):
    """config.json as published checkpoints have it, from what transformers 5 wrote."""
    config = {key: value for key, value in config.items() if key != "transformers_version"}
    config |= spec.get("extra", {})
    if spec["layout"] == "v4":
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        config["torch_dtype"] = config.pop("dtype")
    if "quantization" in spec:
        config["quantization_config"] = spec["quantization"]
    if "text_config" in spec:
        config["model_type"] = spec["text_config"]
        config = {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": config,
        }
    return config


def write_tensors(tensors, path, metadata=None):
    save_file(tensors, path, metadata=metadata)
    path.chmod(0o644)


def build_checkpoint(name, folder, seed=0):
    """Write config.json, model.safetensors and expected.safetensors of FIXTURES[name] into
    folder."""
    spec, folder = FIXTURES[name], Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(seed * 1000, seed * 1000 + 1000):
        with tempfile.TemporaryDirectory() as saved:
            save_model(spec, saved, attempt)
            tensors = (
                quantise_saved(spec, saved)
                if "quantised" in spec
                else load_file(Path(saved) / "model.safetensors")
            )
            model = load_f32(saved)
            input_ids = torch.randint(
                0, COMMON["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(attempt)
            )
            found = record(model, input_ids)
            if smallest_margin(model, found) < MARGIN:
                continue
            config = json.loads((Path(saved) / "config.json").read_text())
            break
    for key in tensors:
        if key.endswith("e_score_correction_bias"):  # f32 in all published checkpoints
            tensors[key] = tensors[key].float()
    if "text_config" in spec:
        tensors = {f"language_model.{key}": tensor for key, tensor in tensors.items()}
    if not spec.get("decoder", False):
        del found["logits"]
    write_tensors(tensors, folder / "model.safetensors", {"format": "pt"})
    write_tensors(found, folder / "expected.safetensors")
    (folder / "config.json").write_text(
        json.dumps(published_config(spec, config), indent=2, sort_keys=True) + "\n"
    )
    return attempt


def write_fixtures(args):
    for name in args.names or FIXTURES:
        seed = build_checkpoint(name, args.out / name)
        size = sum(file.stat().st_size for file in (args.out / name).iterdir())
        print(f"{name:18} seed {seed:4} {size:8} bytes")


def write_live(args):
    build_checkpoint(args.name, args.folder, args.seed)


# ---------------------------------------------------------------- whole models


def greedy(model, prompt, steps):
    """The most likely next token, steps times (an end token does not stop it); logits of the
    prompt; least margin."""
    tokens, cache, margin, chosen = prompt[None], None, float("inf"), []
    with torch.no_grad():
        for step in range(steps):
            out = model(tokens, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            if step == 0:
                logits = out.logits[0]
            best = out.logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            tokens = best.indices[:1][None]
            chosen.append(int(best.indices[0]))
    return logits, torch.tensor(chosen, dtype=torch.int32), margin


def write_expected(args):
    """prompts.{i}.input_ids [n] i32, .logits [n, vocab] f32 and .greedy [steps] i32; texts and
    margins as metadata."""
    model, tensors, metadata = load_f32(args.model), {}, {"prompts": str(len(args.prompt))}
    for number, text in enumerate(args.prompt):
        prompt = torch.tensor([BOS, *text.encode("utf-8")])
        logits, chosen, margin = greedy(model, prompt, args.steps)
        key = f"prompts.{number}"
        tensors[f"{key}.input_ids"] = prompt.to(torch.int32)
        tensors[f"{key}.logits"] = logits.contiguous()
        tensors[f"{key}.greedy"] = chosen
        metadata |= {f"{key}.text": text, f"{key}.margin": f"{margin:.6f}"}
        print(
            f"{text!r}: least margin {margin:.4f}, "
            f"{bytes(t for t in chosen.tolist() if t < 256).decode('utf-8', 'replace')!r}"
        )
    write_tensors(tensors, args.out, metadata)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("fixtures", help="write tests/fixtures/checkpoints")
    command.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(FIXTURES)} (default: all)"
    )
    command.add_argument("--out", type=Path, default=CHECKPOINTS)
    command.set_defaults(run=write_fixtures)

    command = commands.add_parser("live", help="write one fixture folder from another seed")
    command.add_argument("name", choices=FIXTURES)
    command.add_argument("folder", type=Path)
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(run=write_live)

    command = commands.add_parser(
        "expected", help="logits and greedy tokens of a model for byte prompts"
    )
    command.add_argument("model", type=Path)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument(
        "--prompt", action="append", required=True, help="may be given several times"
    )
    command.add_argument("--steps", type=int, default=64)
    command.set_defaults(run=write_expected)

    logging.disable_progress_bar()
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
