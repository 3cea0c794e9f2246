# SPDX-License-Identifier: Apache-2.0
"""The part of check_vllm_cpu.py that goes through `vllm serve`: 192 requests to a server with
Trimtab's experts and balancer on two ranks, answered as vLLM's own server answers them."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
# English, then Russian, by which tiny-moe's busy experts change.
PROMPTS = ROOT / "models/tiny-moe/domain_shift.txt"
REQUESTS, AT_A_TIME, TOKENS = 192, 16, 24
INTERVAL = 16
SPREAD = ["--enable-expert-parallel", "--enable-eplb", "--eplb-config"]
SPREAD += [json.dumps({"step_interval": INTERVAL, "num_redundant_experts": 2})]
# Layout -> what both servers get, and what only Trimtab's gets. Over data-parallel ranks vLLM's own
# experts can't run on CPUs; each such rank computes what one rank alone does.
LAYOUTS = {
    "tp2-eplb": (["--tensor-parallel-size", "2"], []),
    "dp2-eplb": ([], ["--data-parallel-size", "2"]),
}
STARTED_WITHIN, STOPPED_WITHIN, ANSWERED_WITHIN = 900, 120, 600  # seconds
ENDED_WITHIN = 60  # after a rank was killed
# For rates(): requests at a time, and how often.
AT_ONCE, ROUNDS = (1, 4, 16), 5
TP2_OWN = ["--tensor-parallel-size", "2"]
RATED = {
    "tp2 bf16": ([*TP2_OWN, "--enable-expert-parallel"], {}),
    "dp2 bf16": (["--data-parallel-size", "2", "--enable-expert-parallel"], {}),
    "tp2 w8a8": ([*TP2_OWN, "--enable-expert-parallel"], {"experts": "w8a8"}),
    "tp2 w4a8": ([*TP2_OWN, "--enable-expert-parallel"], {"experts": "w4a8"}),
    "tp2 bf16, eplb": ([*TP2_OWN, *SPREAD], {}),
}
LOST = re.compile(r"CommError: rank 0, .*peer 1: its process has ended; start all ranks again")


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Server:
    """`vllm serve` of a model, which is stopped at the end of a `with`."""

    def __init__(self, python, model, arguments, environment, log):
        self._address = f"http://127.0.0.1:{(port := free_port())}"
        command = [python.parent / "vllm", "serve", model, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--served-model-name", "model", "--dtype", "float32"]
        command += ["--max-model-len", "512", "--max-num-batched-tokens", "512"]
        command += ["--max-num-seqs", "8", "--no-enable-prefix-caching"]
        command += ["--kv-cache-memory-bytes", str(64 << 20), *arguments]
        self._shared = shared_memory()
        self._log, self._began = log, log.stat().st_size if log.exists() else 0
        with open(log, "a") as out:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self):
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_until_ready(self):
        until = time.monotonic() + STARTED_WITHIN
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}")
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1)
        raise RuntimeError(f"the server did not start within {STARTED_WITHIN} s")

    def get(self, path):
        with urllib.request.urlopen(self._address + path, timeout=ANSWERED_WITHIN) as answer:
            return answer.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN) as answer:
            return json.load(answer)

    def complete(self, prompt):
        """The greedy text that follows on a prompt, and its tokens."""
        body = {"model": "model", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        (choice,) = self.post("/v1/completions", body)["choices"]
        return choice["text"], choice["token_ids"]

    def complete_all(self, prompts):
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            return list(pool.map(self.complete, prompts))

    def said(self):
        """What the server has written to its log."""
        return self._log.read_bytes()[self._began :].decode(errors="replace")

    def stop(self):
        """Ends the server as an operator does. Returns what is not as it should be."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.ended(STOPPED_WITHIN)

    def ended(self, seconds):
        """What is not as it should be when the server has ended, which it must within so many
        seconds. Its processes end in any case."""
        wrong = []
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            wrong.append(f"the server did not end within {seconds} s")
        if left := self._processes(patience=10):
            wrong.append(f"processes {left} were left")
            for process in left:
                os.kill(process, signal.SIGKILL)
            self._process.wait()
        left = shared_memory() - self._shared - in_use()
        vllms = {name for name in left if name.startswith("vllm_dist_")}
        for name in vllms:  # vLLM's own tensor-parallel ranks leave them, with Trimtab and without
            pathlib.Path("/dev/shm", name).unlink()
        time.sleep(2 if left > vllms else 0)  # other programs of the machine come and go
        if left := (left - vllms) & shared_memory() - in_use():
            wrong.append(f"/dev/shm has {', '.join(sorted(left))}")
        return wrong

    def kill_rank_1(self):
        """Kills the process of the second expert-parallel rank."""
        (process,) = [p for p in processes_of(self._process.pid) if "_EP1" in title_of(p)]
        os.kill(process, signal.SIGKILL)

    def _processes(self, patience):
        """The processes of the server that are still there after so many seconds."""
        for _ in range(10 * patience):
            if not (left := processes_of(self._process.pid)):
                break
            time.sleep(0.1)
        return left


def processes_of(session):
    """The processes of a session, but not those that have ended and are not yet waited for."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def title_of(process):
    return pathlib.Path(f"/proc/{process}/cmdline").read_text(errors="replace")


def shared_memory():
    return set(os.listdir("/dev/shm"))


def in_use():
    """What processes of this machine have mapped of /dev/shm. Semaphores are mapped by a name that
    they have no more, so files are known by their number."""
    numbers = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:  # it has ended, or is somebody else's
            continue
        numbers.update(int(line.split()[4]) for line in lines if " /dev/shm/" in line)
    found = set()
    for name in shared_memory():
        try:
            if os.stat(f"/dev/shm/{name}").st_ino in numbers:
                found.add(name)
        except FileNotFoundError:
            continue
    return found


def chat(server):
    """The greedy text of an answer to a message."""
    body = {"model": "model", "messages": [{"role": "user", "content": "The evening was"}]}
    body |= {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    (choice,) = server.post("/v1/chat/completions", body)["choices"]
    return choice["message"]["content"]


def prompts():
    lines = PROMPTS.read_text().splitlines()[:REQUESTS]
    assert len(lines) == REQUESTS
    return lines


def answers(python, model, arguments, trimtab, environment, log):
    """The answers to all prompts and one chat, the page of metrics, and what was wrong with the
    end."""
    arguments = [*arguments, "--additional-config", json.dumps({"trimtab": trimtab})]
    with Server(python, model, arguments, environment, log) as server:
        texts = server.complete_all(prompts())
        time.sleep(1.5)  # metrics are written once in a second
        texts.append(chat(server))
        page = server.get("/metrics")
        return texts, page, server.stop()


def metric(page, name, labels='group="0"'):
    (value,) = re.findall(rf"^trimtab_{name}{{{labels}}} (\S+)$", page, re.MULTILINE)
    return float(value)


def balanced(page):
    """Whether the page tells of a balancer at work, and what to print of it."""
    replans, moves = metric(page, "rebalances_total"), metric(page, "moves_total")
    level = metric(page, "balancedness", 'group="0",stat="mean"')
    alive, steps = metric(page, "alive"), metric(page, "steps_total")
    good = replans >= 2 and moves > 0 and 0 < level <= 1 and alive == 1 and steps > 2 * INTERVAL
    text = f"{replans:.0f} replans, {moves:.0f} experts moved, balancedness {level:.2f}"
    return good, text if alive else f"{text}, the balancer is not alive"


def compare(python, folder, model, mode, layout, environment):
    """Whether Trimtab's server does what vLLM's own does, and what to print of it."""
    both, ours_only = LAYOUTS[layout]
    both = [*both, "--enforce-eager"] if mode == "eager" else both
    run = (environment, folder / "server-log.txt")
    own, _, own_wrong = answers(python, model, both, {"enabled": False}, *run)
    settings = {"require": True, "balancer": {"gate": False}}
    ours, page, wrong = answers(python, model, [*both, *ours_only, *SPREAD], settings, *run)
    same = sum(a == b for a, b in zip(ours, own))
    at_work, told = balanced(page)
    passed = ours == own and at_work and not wrong
    text = [f"{same} of {len(own)} answers equal", told, *wrong]
    if own_wrong:
        text.append(f"vLLM's own: {', '.join(own_wrong)}")
    return passed, ", ".join(text)


def lose_a_rank(python, folder, model, mode, layout, environment):
    """Whether Trimtab's server ends, and says why, when a rank is killed while it answers; and what
    to print of it."""
    both, ours_only = LAYOUTS[layout]
    arguments = [*both, *ours_only, *SPREAD, *(["--enforce-eager"] if mode == "eager" else [])]
    arguments += ["--additional-config", json.dumps({"trimtab": {"require": True}})]
    log = folder / "server-log.txt"
    with Server(python, model, arguments, environment, log) as server:
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            asked = [pool.submit(server.complete, prompt) for prompt in prompts()]
            asked[AT_A_TIME].result()
            began = time.monotonic()
            server.kill_rank_1()
            wrong = server.ended(ENDED_WITHIN)
            took = time.monotonic() - began
        failed = sum(answer.exception() is not None for answer in asked)
        if not LOST.search(server.said()):
            wrong.append("nothing says which rank was lost")
    if failed == 0:
        wrong.append("all requests had been answered before")
    text = [f"ended {took:.0f} s after a rank was killed", f"{failed} requests failed", *wrong]
    return not wrong, ", ".join(text)


def rates(python, folder, model, environment):
    """Prints new tokens per second of vLLM's own server over two tensor-parallel ranks, and how
    many times as many Trimtab's gives: median and range of the rounds, in which both servers answer
    in turns."""
    environment = {**environment, "VLLM_SLEEP_WHEN_IDLE": "1"}
    usual = ["--dtype", "bfloat16", "--max-num-seqs", str(max(AT_ONCE))]
    log = folder / "rates-log.txt"

    def start(arguments, settings):
        arguments = [*usual, *arguments, "--additional-config", json.dumps({"trimtab": settings})]
        return Server(python, model, arguments, environment, log)

    for name, (arguments, settings) in RATED.items():
        with start(TP2_OWN, {"enabled": False}) as own:
            with start(arguments, {"require": True, **settings}) as ours:
                for at_once in AT_ONCE:
                    pairs = [(rate(own, at_once), rate(ours, at_once)) for _ in range(ROUNDS + 1)]
                    times = sorted(b / a for a, b in pairs[1:])  # the first warms up
                    middle = sorted(a for a, _ in pairs[1:])[ROUNDS // 2]
                    print(
                        f"{name:15} {at_once:2} requests: vLLM's own tp2 {middle:.1f} tokens/s, "
                        f"Trimtab {times[ROUNDS // 2]:.2f} times ({times[0]:.2f}-{times[-1]:.2f})",
                        flush=True,
                    )


def rate(server, at_once):
    """New tokens per second of so many requests at a time."""
    asked = prompts()[:at_once]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        answered = list(pool.map(server.complete, asked))
    return sum(len(tokens) for _, tokens in answered) / (time.monotonic() - began)
