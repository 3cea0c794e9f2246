# SPDX-License-Identifier: Apache-2.0
"""python -m trimtab.generate MODEL --prompt TEXT: text of a Hugging Face model whose experts
Trimtab runs."""

import argparse
import sys
from pathlib import Path

from ._core import weight_formats

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt")


class _ByteTokenizer:
    """For models whose token ids are bytes, such as models/tiny-moe."""

    def __init__(self, config):
        self.bos = [] if config.bos_token_id is None else [config.bos_token_id]

    def encode(self, text):
        return [*self.bos, *text.encode()]

    def decode(self, ids, skip_special_tokens=True):
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def _tokenizer(model_name, config):
    path = Path(model_name)
    if (
        path.is_dir()
        and config.vocab_size <= 320
        and not any((path / name).exists() for name in _TOKENIZERS)
    ):
        return _ByteTokenizer(config)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_name)


def _progress(max_new_tokens, hidden):
    """A streamer for generate() that moves a bar with each token."""
    from tqdm import tqdm
    from transformers.generation.streamers import BaseStreamer

    class Progress(BaseStreamer):
        def __init__(self):
            self.bar = tqdm(
                total=max_new_tokens, unit="token", disable=hidden or None, file=sys.stderr
            )
            self.prompt_is_next = True

        def put(self, value):
            if not self.prompt_is_next:
                self.bar.update(1)
            self.prompt_is_next = False

        def end(self):
            self.bar.close()

    return Progress()


def _parser():
    parser = argparse.ArgumentParser(prog="python -m trimtab.generate", description=__doc__)
    parser.add_argument("model", help="a directory, or a name on the Hugging Face hub")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="0, the default: always the most likely token",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the draws with a temperature above 0"
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="of the model, as in from_pretrained: auto, float32, bfloat16",
    )
    parser.add_argument(
        "--ranks", type=int, help="ranks that share the experts; default: one for each NUMA node"
    )
    parser.add_argument(
        "--threads", type=int, help="threads of each rank; default: torch's threads / ranks"
    )
    parser.add_argument(
        "--quantization",
        help=f"of the experts: {', '.join(weight_formats())}; default: as they are",
    )
    parser.add_argument("--quiet", action="store_true", help="the text alone: no bar, no report")
    return parser


def main(arguments=None):
    options = _parser().parse_args(arguments)
    import torch
    from transformers import AutoModelForCausalLM, set_seed

    from . import transformers as experts

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype).eval()
    report = experts.enable(
        model, ranks=options.ranks, threads=options.threads, quantization=options.quantization
    )
    if not options.quiet:
        print(report, file=sys.stderr)
    tokenizer = _tokenizer(options.model, model.config)
    ids = torch.tensor([tokenizer.encode(options.prompt)])
    set_seed(options.seed)
    sampling = {"do_sample": False}
    if options.temperature > 0:
        sampling = {"do_sample": True, "temperature": options.temperature}
    streamer = _progress(options.max_new_tokens, options.quiet)
    with torch.inference_mode():
        output = model.generate(
            ids, max_new_tokens=options.max_new_tokens, streamer=streamer, **sampling
        )
    print(tokenizer.decode(output[0].tolist(), skip_special_tokens=True))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"python -m trimtab.generate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
