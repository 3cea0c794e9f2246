# SPDX-License-Identifier: Apache-2.0
"""Models for check_vllm_cpu.py: small ones with random weights, and tiny-moe, all with a tokenizer
of bytes. Runs inside an environment with vLLM."""

import pathlib
import random
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAINED = "tiny-moe"
RANDOM = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"),
    *("glm4_moe", "gpt_oss"),
)
# Layers of the sizes of Qwen3-30B-A3B, in bf16: 4.9 GB.
LARGE = "qwen3_moe_large"
# A token is a byte, as in tiny-moe.
BEGIN, END, VOCABULARY = 256, 257, 258


def make(family, folder):
    """A checkpoint in f32 (tiny-moe: bf16) whose greedy tokens vary, in a folder that is not there
    yet."""
    if family == TRAINED:
        shutil.copytree(ROOT / "models/tiny-moe", folder)
    else:
        random_model(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def random_model(family):
    import torch
    import transformers

    torch.manual_seed(7)
    wanted = config(family)
    model = transformers.AutoModelForCausalLM.from_config(wanted, dtype=wanted.dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 1.0 if "embed" in name else 0.15)
            elif "bias" in name or "sinks" in name:
                parameter.normal_(0, 0.1)
    return model


def config(family):
    import transformers

    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "intermediate_size": 96,
        "moe_intermediate_size": 96,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    eight = {"num_experts_per_tok": 2}
    sixteen = {"num_experts_per_tok": 4}
    grouped = {
        **sixteen,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
    }
    latent = {
        **grouped,
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 512,  # with 64 the one size that vLLM's CPU kernel has
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
        "n_group": 4,
        "topk_group": 2,
    }
    large = {
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "dtype": "bfloat16",
    }
    kind, own = {
        "mixtral": ("Mixtral", {**eight, "num_local_experts": 8}),
        "qwen2_moe": (
            "Qwen2Moe",
            {**eight, "num_experts": 8, "shared_expert_intermediate_size": 96},
        ),
        "qwen3_moe": ("Qwen3Moe", {**sixteen, "num_experts": 16, "norm_topk_prob": True}),
        LARGE: ("Qwen3Moe", large),
        "olmoe": ("Olmoe", {**sixteen, "num_experts": 16}),
        "deepseek_v2": ("DeepseekV2", {**latent, "topk_method": "group_limited_greedy"}),
        "deepseek_v3": (
            "DeepseekV3",
            {**latent, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        ),
        "glm4_moe": ("Glm4Moe", {**grouped, "n_group": 1, "topk_group": 1}),
        "gpt_oss": ("GptOss", {**eight, "num_local_experts": 8, "sliding_window": 32}),
    }[family]
    values = {**common, **own}
    if kind.startswith("Deepseek"):
        del values["head_dim"]  # its own follow from the parts of a head
    return getattr(transformers, f"{kind}Config")(**values)


def tokenizer():
    """Each byte is a token with the byte's value; a text begins with BEGIN."""
    import tokenizers
    import transformers

    plain = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={letter: byte for byte, letter in _letters().items()}, merges=[]
        )
    )
    plain.add_special_tokens(["<s>", "</s>"])
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    plain.decoder = tokenizers.decoders.ByteLevel()
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BEGIN)]
    )
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert made("né")["input_ids"] == [BEGIN, *"né".encode()] and len(made) == VOCABULARY
    return made


def _letters():
    """The letter that stands for each byte in a byte-level vocabulary: itself where it can be
    printed, else one of those from 256 on, in order."""
    letters, next_one = {}, 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(next_one)
            next_one += 1
    return letters


def prompts():
    """Twelve prompts of 1 to 40 random bytes, as tokens."""
    chance = random.Random(5)
    lengths = (chance.choice([1, 5, 17, 40]) for _ in range(12))
    return [[chance.randrange(3, 256) for _ in range(length)] for length in lengths]
