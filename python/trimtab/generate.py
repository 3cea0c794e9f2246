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


class _Text:
    """A streamer for generate() that writes the text to standard output as it comes, up to the
    first of the texts in stops that the new text has, and moves a bar where there is one."""

    def __init__(self, tokenizer, stops, bar):
        self.tokenizer, self.stops, self.bar = tokenizer, stops, bar
        self.ids, self.prompt, self.written = [], None, 0
        # What may turn out to be the beginning of a stop waits.
        self.held = max((len(stop) for stop in stops), default=1) - 1
        self.has_stopped = False

    def put(self, value):
        self.ids += value.reshape(-1).tolist()
        text = self._text()
        if self.prompt is None:
            self.prompt = text
        else:
            self.bar.update(1)
        # A character whose last bytes are to come decodes as U+FFFD.
        shown = max(len(text) - self.held, len(self.prompt))
        self._write(text[:shown].rstrip("\ufffd"))

    def end(self):
        self.bar.close()
        self._write(self._text())

    def _text(self):
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        begin = len(self.prompt or text)
        ends = [at for stop in self.stops if (at := text.find(stop, begin)) >= 0]
        self.has_stopped = bool(ends)
        return text[: min(ends)] if ends else text

    def _write(self, text):
        if len(text) > self.written:
            sys.stdout.write(text[self.written :])
            sys.stdout.flush()
            self.written = len(text)


def _sampling(options):
    """The arguments of generate() for how tokens are chosen."""
    chosen = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(options, name)) is not None
    }
    if options.model_sampling:
        return chosen
    if not options.temperature:
        if len(chosen) > ("temperature" in chosen):
            raise ValueError("--top-k, --top-p and --min-p have no effect without --temperature")
        return {"do_sample": False}
    # What is not said is off, whatever the model says.
    return {"do_sample": True, "top_k": 0, "top_p": 1.0, **chosen}


def _parser():
    parser = argparse.ArgumentParser(prog="python -m trimtab.generate", description=__doc__)
    parser.add_argument("model", help="a directory, or a name on the Hugging Face hub")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N")
    parser.add_argument(
        "--temperature",
        type=float,
        help="0, the default: always the most likely token",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens")
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the fewest tokens that have this share of the probability",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="draw from tokens at least this many times as likely as the most likely one",
    )
    parser.add_argument(
        "--model-sampling",
        action="store_true",
        help="take what is not said of these four from the model's generation_config.json",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="a text that ends the output, which does not show it; may be given several times",
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
    if "" in options.stop:
        raise ValueError("--stop is empty")
    sampling = _sampling(options)
    import torch
    from tqdm import tqdm
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
    # On one terminal the bar would stand in the text.
    hidden = options.quiet or sys.stdout.isatty() or None
    text = _Text(
        tokenizer,
        options.stop,
        tqdm(total=options.max_new_tokens, unit="token", disable=hidden, file=sys.stderr),
    )
    try:
        with torch.inference_mode():
            model.generate(
                ids,
                max_new_tokens=options.max_new_tokens,
                streamer=text,
                stopping_criteria=[lambda ids, scores: text.has_stopped],
                **sampling,
            )
    finally:
        print()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"python -m trimtab.generate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
