# SPDX-License-Identifier: Apache-2.0
"""Runs the server of docs/transformers.md and compares its answers with generate().

Needs torch, transformers with its extra `serving`, and the Python package (skipped without them).
"""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

for needed in ("torch", "transformers", "fastapi", "uvicorn", "openai", "accelerate"):
    pytest.importorskip(needed, reason=f"no {needed}; docs/transformers.md says what serving wants")

REPO = Path(__file__).resolve().parents[2]
pytest.importorskip("trimtab", reason="no trimtab; PYTHONPATH may name that of a build")
sys.path.insert(0, str(REPO / "tools"))
import torch  # noqa: E402
import transformers  # noqa: E402
import vllm_cpu_models  # noqa: E402

REQUESTS, TOKENS = 16, 24


def program(model, port):
    """What the page says, for this model and port, in f32."""
    page = (REPO / "docs/transformers.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    (text,) = [block for block in blocks if "Serve(" in block]
    for written, wanted in {
        '"MODEL"': repr(str(model)),
        "port=8000": f"port={port}",
        '"bfloat16"': '"float32"',
    }.items():
        assert text.count(written) == 1
        text = text.replace(written, wanted)
    return text


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def complete(address, model, prompt):
    body = {"model": str(model), "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["text"]


def wait_for(address, server):
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert server.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(f"{address}/health", timeout=10)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    pytest.fail("the server did not start")


def stop(process):
    """The second Ctrl-C ends it: after the first, transformers waits for its own thread."""
    for _ in range(60):
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("the server does not end")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    vllm_cpu_models.make("tiny-moe", folder)
    return folder


@pytest.fixture
def server(model, tmp_path):
    port = free_port()
    (tmp_path / "serve.py").write_text(program(model, port))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with open(tmp_path / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, tmp_path / "serve.py"], env=environment, stdout=log, stderr=log
        )
    try:
        address = f"http://localhost:{port}"
        wait_for(address, process)
        yield address
        stop(process)
    finally:
        process.kill()
    assert "Trimtab" in (tmp_path / "log.txt").read_text()


def expected(model, prompts):
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    texts = []
    for prompt in prompts:
        tokens = tokenizer(prompt, return_tensors="pt")
        answer = own.generate(**tokens, max_new_tokens=TOKENS, do_sample=False)[0]
        new = answer[tokens["input_ids"].shape[1] :]
        texts.append(tokenizer.decode(new, skip_special_tokens=True))
    return texts


def test_the_server_of_the_page(model, server):
    lines = (REPO / "models/tiny-moe/domain_shift.txt").read_text().splitlines()
    prompts = lines[:: len(lines) // REQUESTS][:REQUESTS]
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        answers = list(pool.map(lambda prompt: complete(server, model, prompt), prompts))
    assert answers == expected(model, prompts)
