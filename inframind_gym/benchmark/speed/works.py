"""Pieces of work whose time is taken: a program that answers over its standard input and output.

It runs as a file, not as a module of its package, and what it times is the `inframind_gym` that
PYTHONPATH leads to: so two revisions of the package do the same work. It imports nothing but what
every revision has. A line of JSON asks, a line answers:

    {"prepare": "stream", "arguments": {...}}  ->  {"ready": true}, after a chunk as a warm-up
    {}                                         ->  {"count": 512000.0, "cpu_s": 0.51}, a chunk

or ``{"error": text}``. Time is that of the processor: other programs take none of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

import inframind_gym  # registers the environments

Work = Callable[[], tuple[float, float]]  # does a chunk: (how much was done, CPU seconds)


def timed(chunk: Callable[[], float]) -> Work:
    """Add the CPU time of this process to a chunk that returns how much was done."""

    def work() -> tuple[float, float]:
        began = time.process_time()
        count = chunk()
        return count, time.process_time() - began

    return work


def stepped(env: Any, actions: Sequence[Any], steps: int, rows: int) -> Work:
    """Take steps with the actions in turn; counts steps of all rows."""
    env.reset(seed=0)
    taken = 0

    def chunk() -> float:
        nonlocal taken
        for _ in range(steps):
            env.step(actions[taken % len(actions)])
            taken += 1
        return float(steps * rows)

    return timed(chunk)


def vector(env_id: str, num_envs: int, steps: int, fixed: int | None, kwargs: Any) -> Work:
    """Step a vector environment of routing, with one fixed action or with random ones."""
    env: Any = gym.make_vec(env_id, num_envs=num_envs, **kwargs)
    actions = np.random.default_rng(0).integers(env.single_action_space.n, size=(256, num_envs))
    if fixed is not None:
        actions[:] = fixed
    return stepped(env, list(actions), steps, num_envs)


def single(env_id: str, steps: int, kwargs: Any) -> Work:
    """Step a single environment with random actions, resets included."""
    env: Any = gym.make(env_id, **kwargs)
    env.reset(seed=0)
    space, rng = env.action_space, np.random.default_rng(0)
    choices: Any = space.nvec if space.shape else space.n
    actions = rng.integers(choices, size=(256, *space.shape))
    turn = list(actions) if space.shape else actions.tolist()

    def chunk() -> float:
        for step in range(steps):
            _, _, terminated, truncated, _ = env.step(turn[step % 256])
            if terminated or truncated:
                env.reset()
        return float(steps)

    return timed(chunk)


def placement(num_envs: int, steps: int, idle: bool, kwargs: Any) -> Work:
    """Step a vector environment of placement: random choices for all GPUs, or none (`idle`)."""
    env: Any = gym.make_vec("InfraMind-Placement-v0", num_envs=num_envs, **kwargs)
    choices = env.single_action_space.nvec
    actions = np.random.default_rng(0).integers(choices, size=(256, num_envs, len(choices)))
    return stepped(env, list(actions * (not idle)), steps, num_envs)


def placement_policy(policy: str, steps: int, kwargs: Any) -> Work:
    """Let a placement policy decide in a single environment; its decisions alone are timed."""
    from inframind_gym.policies.placement import registry

    env: Any = gym.make_vec("InfraMind-Placement-v0", num_envs=1, **kwargs)
    plays, rows = registry.resolve(policy), np.arange(1)
    observations, _ = env.reset(seed=0)
    plays.reset(env.unwrapped.placement_spec(), [0])

    def work() -> tuple[float, float]:
        nonlocal observations
        spent = 0.0
        for _ in range(steps):
            contexts = env.unwrapped.contexts()
            began = time.process_time()
            actions = plays.act_batch(observations, contexts, rows)
            spent += time.process_time() - began
            observations, *_ = env.step(np.asarray(actions, np.int64))
        return float(steps), spent

    return work


def kernel(pool: str, requests: int, load: float, slots: int | None, backlog: int) -> Work:
    """Serve requests by deadline on a pool's servers alone.

    Args:
        pool: Name or file.
        requests: That arrive at `load` times the servers' capacity, all slots taken: with as many
            busy neighbours on the same GPU.
        load: No queue grows without end below 1.
        slots: In place of the cards' `max_num_seqs`, with KV cache and token budget for as many.
        backlog: Requests that wait at each server from the start.
    """
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.replay import replay_requests
    from inframind_gym.simulator.server.state import cards

    card = cards(load_pool(pool))
    if slots is not None:
        card["usable_blocks"] *= max(1, slots // int(card["max_num_seqs"].min()))
        card["max_num_seqs"] = slots
    rng = np.random.default_rng(0)
    mean_tokens = 300
    busy_peers = np.array([int(peers).bit_count() for peers in card["peers"]])
    step_s = card["base_s"] + card["max_num_seqs"] * card["per_seq_s"]
    step_s *= 1.0 + card["slowdown"] * busy_peers
    rate_per_s = load * card["max_num_seqs"] / (mean_tokens * step_s)
    server = rng.choice(len(card), size=requests, p=rate_per_s / rate_per_s.sum())
    submit_s = np.cumsum(rng.exponential(1.0 / rate_per_s.sum(), size=requests))
    server = np.concatenate([np.tile(np.arange(len(card)), backlog), server])
    submit_s = np.concatenate([np.zeros(backlog * len(card)), submit_s])
    count = len(server)
    prompts = rng.integers(100, 600, size=count)
    lengths = rng.lognormal(np.log(mean_tokens) - 0.125, 0.5, size=count)
    outputs = np.clip(lengths, 1, 2048).astype(np.int64)
    deadline_s = submit_s + rng.choice([10.0, 30.0, 50.0, 100.0, 200.0, 300.0], size=count)

    def chunk() -> float:
        replay_requests(card, server, submit_s, prompts, outputs, deadline_s)
        return float(count)

    return timed(chunk)


def trace(path: str, pool: str, model: str, rounds: int) -> Work:
    """Replay a trace's arrivals and token counts on one server of a pool; counts simulated seconds.

    Tokens beyond the server's context are cut: of the prompt first.
    """
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.replay import replay_requests
    from inframind_gym.simulator.server.state import card_record
    from inframind_gym.simulator.traces import load_trace

    loaded = load_pool(pool)
    card = loaded.models[loaded.index(model)].server
    recorded = load_trace(path)
    outputs = np.clip(recorded.output_tokens, 1, card.max_model_len // 2)
    prompts = np.clip(recorded.input_tokens, 1, card.max_model_len - outputs)
    record, where = card_record(card), np.zeros(len(recorded), np.int64)
    submit_s = recorded.times_s.copy()  # one that can be written to, as everywhere: no other kernel

    def chunk() -> float:
        for _ in range(rounds):
            served = replay_requests(record, where, submit_s, prompts, outputs)
        return float(rounds * served["finish_s"].max())

    return timed(chunk)


def process(code: str, cached: bool = True) -> Work:
    """Run code in a fresh interpreter, without the interpreter's own start.

    What the code assigns to `count` is how much was done (1). Without `cached` no kernel that was
    compiled before is found.
    """
    program = (
        f"import json, time\nbegan, count = time.process_time(), 1.0\n{code}\n"
        "print(json.dumps([count, time.process_time() - began]))"
    )

    def work() -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as empty:
            environment = dict(os.environ) | ({} if cached else {"NUMBA_CACHE_DIR": empty})
            command = [sys.executable, "-P", "-c", program]  # not the folder that it runs in
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise RuntimeError("a fresh Python process failed; its error is above")
        count, cpu_s = json.loads(done.stdout.splitlines()[-1])
        return float(count), float(cpu_s)

    return work


WORKS: dict[str, Callable[..., Work]] = {
    made.__name__: made
    for made in (vector, single, placement, placement_policy, kernel, trace, process)
}


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # what the package prints is no answer
    print(json.dumps({"package": inframind_gym.__file__}), file=answers, flush=True)
    work: Work | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                work = None  # the last one's memory goes first
                work = WORKS[request["prepare"]](**request["arguments"])
                if request["warm"]:
                    work()
                answer: dict[str, Any] = {"ready": True}
            else:
                assert work is not None, "nothing was prepared"
                count, cpu_s = work()
                answer = {"count": count, "cpu_s": cpu_s}
        except Exception as error:  # of a revision that cannot do it: the others go on
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
