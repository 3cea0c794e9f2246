# SPDX-License-Identifier: Apache-2.0
"""Train tiny-moe, the small Qwen3-MoE language model in models/tiny-moe.

The model reads bytes: token id = byte value, 256 = BOS, 257 = EOS.  It learns
four domains (English and Spanish prose, Russian, Python source) from texts in
Debian packages; see tools/README.md for the exact commands.

    corpus    extract the texts from unpacked Debian packages
    train     train on the extracted texts (CPU, about 35 minutes on 2 free cores)
    export    write a checkpoint as a Hugging Face model directory
    evaluate  bits per byte, routing skew and samples of an exported model
    trace     record a routing trace of an exported model on held-out text
"""

import argparse
import html
import json
import math
import re
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3MoeConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRMSNorm

REPO = Path(__file__).resolve().parent.parent
CACHE = Path.home() / ".cache" / "trimtab" / "tiny-moe"
MODEL_DIR = REPO / "models" / "tiny-moe"

BOS, EOS, VOCAB_SIZE = 256, 257, 258
HELD_OUT_EVERY = 20  # one document of this many is held out
SEQUENCE = 512  # tokens of a training sequence, BOS included
BATCH = 16  # sequences a step
EP_RANKS = 4  # ranks of the reported peak-to-average rank load


# ---------------------------------------------------------------- corpus


def read_r_strings(data):
    """Yield the character vectors of an R lazy-load database, one list an object."""
    position = 0
    while position < len(data):
        inflate = zlib.decompressobj()
        raw = inflate.decompress(data[position + 4 :])
        position = len(data) - len(inflate.unused_data)
        strings, at = [], raw.index(b"\x00\x04\x00\x09")
        while raw[at + 1 : at + 4] == b"\x04\x00\x09":
            (length,) = struct.unpack_from(">i", raw, at + 4)
            at += 8
            strings.append(raw[at : at + length].decode("utf-8"))
            at += length
        yield strings


def english_documents(packages):
    """The chapters of Jane Austen's novels, one paragraph a line (r-cran-janeaustenr)."""
    path = packages / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    for lines in read_r_strings(path.read_bytes()):
        chapters = re.split(
            r"\n *chapter +[0-9ivxl]+\b[^\n]*\n", "\n".join(lines), flags=re.IGNORECASE
        )
        for chapter in chapters[1:]:
            paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", chapter))
            yield "\n".join(p for p in paragraphs if p and not p.isupper())


def spanish_documents(packages):
    """The books of the Reina-Valera Bible of 1909, one verse a line (sword-text-sparv)."""
    folder = packages / "usr/share/sword/modules/texts/ztext/spaRV1909eb"
    for testament in ("ot", "nt"):
        compressed = (folder / f"{testament}.bzz").read_bytes()
        blocks = [
            zlib.decompress(compressed[start : start + size])
            for start, size, _ in struct.iter_unpack(
                "<III", (folder / f"{testament}.bzs").read_bytes()
            )
        ]
        verses = [[] for _ in blocks]
        for block, start, size in struct.iter_unpack(
            "<IIH", (folder / f"{testament}.bzv").read_bytes()
        ):
            markup = blocks[block][start : start + size].decode("utf-8") if size else ""
            if "<w " in markup:
                markup = re.sub(r"<title.*?</title>|<note.*?</note>", "", markup)
                text = html.unescape(
                    re.sub(r"<[^>]*>", "", re.sub(r"</?transChange[^>]*>", " ", markup))
                )
                verses[block].append(re.sub(r" ([,.;:!?])", r"\1", " ".join(text.split())))
        yield from ("\n".join(book) for book in verses if book)


def russian_documents(packages):
    """The pages of LibreOffice's Russian help, paragraphs not seen before (libreoffice-help-ru)."""
    seen = set()
    for path in sorted((packages / "usr/share/libreoffice/help/ru/text").rglob("*.html")):
        body = path.read_text("utf-8").split('id="DisplayArea"')[-1].split('id="SearchFrame"')[0]
        paragraphs = []
        for markup in re.findall(
            r"<(?:p|h[1-6])\b[^>]*>(.*?)</(?:p|h[1-6])>", body, flags=re.DOTALL
        ):
            text = " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup)).split())
            cyrillic = len(re.findall(r"[\u0400-\u04ff]", text))
            if text not in seen and cyrillic > 0.6 * len(text) > 6:
                seen.add(text)
                paragraphs.append(text)
        if paragraphs:
            yield "\n".join(paragraphs)


def python_documents(packages):
    """The modules of Python's standard library (libpython3.11-stdlib, libpython3.11-minimal)."""
    tables = {"encodings", "pydoc_data", "lib2to3"}
    for path in sorted((packages / "usr/lib/python3.11").rglob("*.py")):
        if path.is_file() and not tables & set(path.parts):
            yield path.read_text("utf-8", errors="ignore").expandtabs()


READERS = {
    "english": english_documents,
    "spanish": spanish_documents,
    "russian": russian_documents,
    "python": python_documents,
}
DOMAINS = tuple(READERS)


def extract_corpus(args):
    """Write train and held-out text of every domain; documents end with a NUL byte."""
    args.corpus.mkdir(parents=True, exist_ok=True)
    for domain, read in READERS.items():
        documents = [document.strip() + "\n\0" for document in read(args.packages)]
        splits = {"train": [], "heldout": []}
        for index, document in enumerate(documents):
            splits["heldout" if index % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else "train"].append(
                document
            )
        for split, chosen in splits.items():
            data = "".join(chosen).encode("utf-8")
            (args.corpus / f"{domain}.{split}.txt").write_bytes(data)
            print(f"{domain:8} {split:8} {len(chosen):5} documents {len(data):9} bytes")


def token_stream(corpus, domain, split):
    """One split as token ids: BOS, bytes and EOS of every document in a row."""
    pieces = []
    for document in (corpus / f"{domain}.{split}.txt").read_bytes().split(b"\0")[:-1]:
        pieces += [[BOS], np.frombuffer(document, np.uint8), [EOS]]
    return np.concatenate(pieces).astype(np.int64)


# ---------------------------------------------------------------- training


class BatchSampler:
    """Draws training batches; a batch depends on the seed and the step only."""

    def __init__(self, corpus, seed):
        self.seed = seed
        self.streams, self.line_starts = [], []
        for domain in DOMAINS:
            stream = token_stream(corpus, domain, "train")
            self.streams.append(stream)
            self.line_starts.append(
                np.flatnonzero((stream == BOS) | (stream == ord("\n")))[:-1] + 1
            )

    def batch(self, step):
        """BATCH sequences of BOS + text; half of them start at the start of a line."""
        random = np.random.default_rng((self.seed, step))
        rows = np.full((BATCH, SEQUENCE), BOS, np.int64)
        for row in range(BATCH):
            stream = self.streams[row % len(DOMAINS)]
            starts = self.line_starts[row % len(DOMAINS)]
            last = len(stream) - SEQUENCE
            start = random.integers(1, last)
            if row < BATCH // 2:
                start = min(starts[min(np.searchsorted(starts, start), len(starts) - 1)], last)
            rows[row, 1:] = stream[start : start + SEQUENCE - 1]
        return torch.from_numpy(rows)


class GatherRows(torch.autograd.Function):
    """Rows of x by index; the backward gathers by the inverse instead of scattering."""

    @staticmethod
    def forward(ctx, x, index, inverse, copies):
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        grad = grad.index_select(0, inverse)
        return grad.view(-1, ctx.copies, grad.shape[1]).sum(1), None, None, None


def sorted_experts(self, hidden, top_k_index, top_k_weights):
    """Experts function for fast CPU training: sort the picks, one matmul pair an expert."""
    tokens, top_k = top_k_index.shape
    picks = top_k_index.reshape(-1)
    order = picks.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    counts = torch.bincount(picks, minlength=self.num_experts).tolist()
    chunks = GatherRows.apply(hidden, order // top_k, inverse, top_k).split(counts)
    outputs = []
    for x, gate_up, down in zip(chunks, self.gate_up_proj.unbind(0), self.down_proj.unbind(0)):
        gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
        outputs.append(F.linear(F.silu(gate) * up, down))
    mixed = GatherRows.apply(torch.cat(outputs), inverse, order, 1).view(tokens, top_k, -1)
    return torch.einsum("tkh,tk->th", mixed, top_k_weights.to(mixed.dtype))


def count_picks(probabilities, top_k):
    """How often each expert is among the top k; probabilities are [tokens, experts]."""
    picks = probabilities.topk(top_k, dim=-1).indices
    return torch.bincount(picks.reshape(-1), minlength=probabilities.shape[-1])


def balance_loss(router_logits, top_k):
    """Load-balancing loss as in Qwen3-MoE, averaged over layers; top_k when even."""
    losses = []
    for logits in router_logits:
        probabilities = logits.float().softmax(-1)
        picks = count_picks(probabilities.detach(), top_k)
        losses.append(len(picks) * torch.dot(picks / len(logits), probabilities.mean(0)))
    return torch.stack(losses).mean()


class Muon(torch.optim.Optimizer):
    """Muon (momentum, then Newton-Schulz) for matrices and for stacks of expert matrices.

    A group's "fused" is the number of matrices that share a parameter's rows.
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "fused": 1}
        )

    @staticmethod
    def orthogonalize(matrices):
        """Replace the singular values of a stack [n, rows, cols], rows <= cols, by about 1."""
        x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x

    @torch.no_grad()
    def step(self):
        """One update of every parameter."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                buffer = state.setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                rows, cols = p.shape[-2] // group["fused"], p.shape[-1]
                matrices = update.reshape(-1, rows, cols)
                if rows <= cols:
                    matrices = self.orthogonalize(matrices)
                else:
                    matrices = self.orthogonalize(matrices.mT).mT
                scale = max(1.0, rows / cols) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(matrices.reshape(p.shape), alpha=-group["lr"] * scale)


def model_config(aux_coef):
    """The shape of tiny-moe: 5.2 M parameters, about 1 M of them active a token."""
    return Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,  # unused: every layer is MoE
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        moe_intermediate_size=64,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        router_aux_loss_coef=aux_coef,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        dtype="float32",
    )


def lr_factor(step, steps):
    """Warm-up, constant, then a linear decay over the last quarter."""
    return min(1.0, (step + 1) / 100, (steps - step) / (0.25 * steps))


def train(args):
    """Train, with a checkpoint every few minutes; --resume goes on from one."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    # the fused norm and experts function change the speed only
    Qwen3MoeRMSNorm.forward = lambda self, x: F.rms_norm(
        x, self.weight.shape, self.weight, self.variance_epsilon
    )
    ALL_EXPERTS_FUNCTIONS.register("sorted", sorted_experts)
    config = model_config(args.aux_coef)
    model = AutoModelForCausalLM.from_config(
        config, experts_implementation="sorted", attn_implementation="sdpa"
    )
    fused, matrices, others = [], [], []
    for name, p in model.named_parameters():
        if name.endswith("gate_up_proj"):
            fused.append(p)
        elif p.dim() > 1 and "embed" not in name and "mlp.gate." not in name:
            matrices.append(p)
        else:
            others.append(p)
    optimizers = [
        Muon(
            [{"params": fused, "fused": 2}, {"params": matrices}],
            lr=args.muon_lr,
            weight_decay=0.01,
        ),
        torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.01),
    ]
    base_lrs = [args.muon_lr, args.adam_lr]
    sampler = BatchSampler(args.corpus, args.seed)
    args.run.mkdir(parents=True, exist_ok=True)
    first = 0
    if args.resume:
        state = torch.load(args.resume, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        first = state["step"]

    def save(step):
        state = {
            "model": model.state_dict(),
            "optimizers": [o.state_dict() for o in optimizers],
            "step": step,
        }
        torch.save(state, args.run / f"step-{step:06}.pt")

    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, steps {first} to {args.steps}",
        flush=True,
    )
    began = saved_at = time.monotonic()
    for step in range(first, args.steps):
        for optimizer, lr in zip(optimizers, base_lrs):
            for group in optimizer.param_groups:
                group["lr"] = lr * lr_factor(step, args.steps)
        tokens = sampler.batch(step)
        output = model(tokens[:, :-1], output_router_logits=True, use_cache=False)
        loss = F.cross_entropy(output.logits.flatten(0, 1), tokens[:, 1:].flatten())
        balance = balance_loss(output.router_logits, config.num_experts_per_tok)
        (loss + args.aux_coef * balance).backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0 or step + 1 == args.steps:
            rate = (step + 1 - first) * BATCH * SEQUENCE / (time.monotonic() - began)
            print(
                f"step {step} bits {loss.item() / math.log(2):.3f} balance {balance.item():.3f} "
                f"{rate:.0f} tokens/s",
                flush=True,
            )
        if time.monotonic() - saved_at > 60 * args.save_minutes or step + 1 == args.steps:
            save(step + 1)
            saved_at = time.monotonic()


# ---------------------------------------------------------------- export and evaluation


def export(args):
    """Write a checkpoint as bf16 safetensors with the config of released Qwen3-MoE models."""
    model = AutoModelForCausalLM.from_config(model_config(args.aux_coef))
    model.load_state_dict(torch.load(args.checkpoint, weights_only=True)["model"])
    model.to(torch.bfloat16).save_pretrained(args.model)
    (args.model / "model.safetensors").chmod(0o644)
    GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, do_sample=True, temperature=0.7, max_new_tokens=200
    ).save_pretrained(args.model)
    path = args.model / "config.json"
    config = json.loads(path.read_text())
    config["num_experts"] = config.pop("num_local_experts")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_model(folder):
    """The exported bf16 weights, computing in f32."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    ).eval()


@torch.no_grad()
def run_windows(model, windows):
    """Held-out loss and routing of token windows [n, SEQUENCE].

    Returns the bits of all predicted bytes, their number, and the picks
    int32 [n, layers, experts]; BOS and EOS are routed but not scored.
    """
    bits, scored, picks = 0.0, 0, []
    for window in torch.from_numpy(windows).split(1):
        output = model(window, output_router_logits=True, use_cache=False)
        targets = window[0, 1:].masked_fill(window[0, 1:] >= BOS, -100)
        bits += F.cross_entropy(output.logits[0, :-1], targets, reduction="sum").item() / math.log(
            2
        )
        scored += int((targets >= 0).sum())
        top_k = model.config.num_experts_per_tok
        picks.append(
            [
                count_picks(logits.float().softmax(-1), top_k).tolist()
                for logits in output.router_logits
            ]
        )
    return bits, scored, np.array(picks, np.int32)


def held_out_windows(corpus, domain):
    """The held-out text cut into windows of BOS + SEQUENCE - 1 tokens, without a short last one."""
    stream = token_stream(corpus, domain, "heldout")[1:]
    count = len(stream) // (SEQUENCE - 1)
    windows = stream[: count * (SEQUENCE - 1)].reshape(count, SEQUENCE - 1)
    return np.pad(windows, ((0, 0), (1, 0)), constant_values=BOS)


def skew(picks):
    """Peak-to-average load of EP_RANKS ranks (experts placed in order) and of the experts."""
    totals = picks.sum(axis=0)  # [layers, experts]
    ranks = totals.reshape(len(totals), EP_RANKS, -1).sum(axis=2)
    return [float((load.max(axis=1) / load.mean(axis=1)).mean()) for load in (ranks, totals)]


def evaluate(args):
    """Print bits per byte, rank and expert skew a domain, and a sample for every prompt."""
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    print("| domain | held-out bytes | bits per byte | PAR, 4 ranks | hottest expert / mean |")
    print("|---|---|---|---|---|")
    everything = []
    for domain in DOMAINS:
        bits, scored, picks = run_windows(model, held_out_windows(args.corpus, domain))
        rank_par, expert_par = skew(picks)
        everything.append(picks.mean(axis=0, keepdims=True))
        print(
            f"| {domain} | {scored} | {bits / scored:.3f} | {rank_par:.2f} | {expert_par:.2f} |",
            flush=True,
        )
    rank_par, expert_par = skew(np.concatenate(everything))
    print(f"| even mix | | | {rank_par:.2f} | {expert_par:.2f} |")
    for prompt in (args.model / "prompts.txt").read_text("utf-8").splitlines():
        torch.manual_seed(args.seed)
        tokens = torch.tensor([[BOS, *prompt.encode("utf-8")]])
        output = model.generate(tokens, attention_mask=torch.ones_like(tokens), pad_token_id=EOS)
        text = bytes(t for t in output[0].tolist() if t < BOS).decode("utf-8", errors="replace")
        print(f"\n```\n{text}\n```")


def trace(args):
    """Write trace.npy: picks int32 [steps, layers, experts], the domains in a row."""
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    parts = []
    for domain in DOMAINS:
        windows = held_out_windows(args.corpus, domain)
        spread = np.linspace(0, len(windows) - 1, args.trace_steps).astype(int)
        parts.append(run_windows(model, windows[spread])[2])
    np.save(args.model / "trace.npy", np.concatenate(parts))


def main():
    """Parse the command line and run one subcommand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, function, help_text):
        sub = commands.add_parser(
            name, help=help_text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        sub.set_defaults(function=function)
        sub.add_argument(
            "--corpus", type=Path, default=CACHE / "corpus", help="folder of the extracted texts"
        )
        return sub

    sub = command("corpus", extract_corpus, "extract the texts from unpacked Debian packages")
    sub.add_argument(
        "--packages",
        type=Path,
        default=CACHE / "packages",
        help="root the packages were unpacked to",
    )

    sub = command("train", train, "train on the extracted texts")
    sub.add_argument("--run", type=Path, default=CACHE / "run", help="folder for the checkpoints")
    sub.add_argument(
        "--steps", type=int, default=1530, help="steps in all; the last quarter decays"
    )
    sub.add_argument("--resume", type=Path, help="checkpoint to go on from")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--threads", type=int, default=2)
    sub.add_argument("--muon-lr", type=float, default=0.02, help="peak rate of the matrices")
    sub.add_argument(
        "--adam-lr", type=float, default=0.003, help="peak rate of embedding, routers and norms"
    )
    sub.add_argument(
        "--aux-coef", type=float, default=0.001, help="weight of the load-balancing loss"
    )
    sub.add_argument("--save-minutes", type=float, default=5.0, help="time between checkpoints")

    sub = command("export", export, "write a checkpoint as a model directory")
    sub.add_argument("--checkpoint", type=Path, required=True)
    sub.add_argument("--model", type=Path, default=MODEL_DIR, help="folder to write to")
    sub.add_argument("--aux-coef", type=float, default=0.001, help="as in train; only recorded")

    sub = command("evaluate", evaluate, "measure an exported model and print samples")
    sub.add_argument("--model", type=Path, default=MODEL_DIR)
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--threads", type=int, default=2)

    sub = command("trace", trace, "record a routing trace on held-out text")
    sub.add_argument("--model", type=Path, default=MODEL_DIR)
    sub.add_argument("--trace-steps", type=int, default=32, help="steps of 512 tokens a domain")
    sub.add_argument("--threads", type=int, default=2)

    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
