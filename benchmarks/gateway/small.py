"""The whole loop on real vLLM: outcomes of `cpu-small`, a fitted surrogate, a policy, live play."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import itertools
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import numpy as np
import typer
import yaml

from benchmarks.gateway.processes import INFRAMIND, PORT, gateway
from benchmarks.gateway.questions import Question, questions
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workflow.topology import STRATEGIES, STRATEGY_INSTRUCTIONS

NEUTRAL: Final = "Concise"  # strategy whose gain is 0
_PATIENCE_S: Final = 300.0
PoolOption = Annotated[str, typer.Option("--pool", help="A pool that is up.")]


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[str, dict[str, int], str]:
    """Return answer, usage and the alias that a gateway chose; "" where there is none."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            told = response.headers.get("x-inframind-model", "")
            if response.status == 200:
                said = await response.json()
                return said["choices"][0]["message"]["content"] or "", said["usage"], told
    return "", {}, ""


def _messages(question: Question, strategy: str) -> list[dict[str, str]]:
    system = {"role": "system", "content": STRATEGY_INSTRUCTIONS[strategy]}
    return [system, {"role": "user", "content": question.text}]


def outcomes(
    out: Annotated[Path, typer.Option(help="Folder of the results.")],
    pool: PoolOption = "cpu-small",
    parallel: int = 6,
) -> None:
    """Ask every model every question under every strategy, grade, and fit a workload.

    Writes outcomes.csv, and workload.yaml by `inframind workload fit`: what that takes from shipped
    workloads, the gains of strategies and their lengths, is measured here and replaces it.
    """
    found = load_pool(pool)
    rows = asyncio.run(_outcomes(found, parallel))
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "outcomes.csv", rows)
    print("right, %                    " + "".join(f"{s:>12s}" for s in STRATEGIES))
    kinds = dict.fromkeys(row["kind"] for row in rows)
    for alias, kind in itertools.product(found.aliases, [*kinds, "all"]):
        shares = []
        for strategy in STRATEGIES:
            mine = [
                row["correct"]
                for row in rows
                if row["model"] == alias
                and row["strategy"] == strategy
                and kind in ("all", row["kind"])
            ]
            shares.append(f"{100 * np.mean(mine):9.0f}/{len(mine)}")
        print(f"{alias:14s} {kind:12s} " + " ".join(shares))
    _write(out / "neutral.csv", [row for row in rows if row["strategy"] == NEUTRAL])
    command = [*INFRAMIND, "workload", "fit", str(out / "neutral.csv")]
    subprocess.run([*command, "--out", str(out / "workload.yaml")], check=True)
    for path in out.glob("workload-*.yaml"):
        _measured_strategies(path, rows)


async def _outcomes(pool: PoolConfig, parallel: int) -> list[dict[str, Any]]:
    limit = asyncio.Semaphore(parallel)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def one(m: int, strategy: str, question: Question) -> dict[str, Any]:
            model = pool.models[m]
            body: dict[str, Any] = {"model": model.name}
            body["messages"] = _messages(question, strategy)
            body |= {"max_tokens": pool.max_output_tokens, "temperature": 0.0}
            async with limit:
                url = model.url or f"http://127.0.0.1:{model.port}"
                text, usage, _ = await _ask(session, url, body)
            return {
                "query": question.id,
                "kind": question.kind,
                "domain": question.domain,
                "model": model.alias,
                "strategy": strategy,
                "correct": int(question.is_right(text)),
                "completion_tokens": usage.get("completion_tokens", 0),
                "prompt_tokens": usage.get("prompt_tokens", 0),
            }

        asked = itertools.product(range(len(pool.models)), STRATEGIES, questions("fit"))
        rows = await asyncio.gather(*(one(*each) for each in asked))
    return [row for row in rows if row["completion_tokens"]]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _measured_strategies(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put the measured gains and lengths of strategies into a fitted workload.

    The gain is the difference of log odds, of the models that are ever right; no agent has a role.
    """
    fitted = yaml.safe_load(path.read_text(encoding="utf-8"))
    mine = [row for row in rows if row["domain"] == fitted["domain"]]
    able = {row["model"] for row in mine if row["correct"]}
    odds, tokens = {}, {}
    for strategy in STRATEGIES:
        of = [row for row in mine if row["strategy"] == strategy and row["model"] in able]
        right = sum(row["correct"] for row in of) + 0.5
        odds[strategy] = float(np.log(right / (len(of) + 1.0 - right)))
        tokens[strategy] = float(np.exp(np.mean([np.log(row["completion_tokens"]) for row in of])))
    gains = {name: round(odds[name] - odds[NEUTRAL], 3) for name in STRATEGIES}
    factors = {name: round(tokens[name] / tokens[NEUTRAL], 3) for name in STRATEGIES}
    fitted["quality"] |= {"strategy_gain": gains, "role_gain": 0.0}
    fitted["output"]["strategy_factor"] = factors
    head = "# By `inframind workload fit`, with measured gains and lengths of strategies.\n"
    path.write_text(head + yaml.safe_dump(fitted, sort_keys=False), encoding="utf-8")
    print(f"{path.name}: gains {gains}, lengths {factors}")


def live(
    workload: Annotated[Path, typer.Option(help="Fitted workload.")],
    policies: Annotated[str, typer.Option(help="Commas between.")],
    pool: PoolOption = "cpu-small",
    fitted: Annotated[str | None, typer.Option(help="Pool with fitted cards.")] = None,
    per_min: float = 60.0,
    count: int = 150,
    budgets: Annotated[str, typer.Option(help="In s; drawn evenly.")] = "3,6,12",
    record: Annotated[Path | None, typer.Option(help="Folder of access logs.")] = None,
) -> None:
    """Goodput of policies behind the gateway on real servers, and in the fitted surrogate."""
    tiers = tuple(float(each) for each in budgets.split(","))
    print(f"{'policy':28s} live: in time, %  goodput, %    simulated: in time, %  goodput, %")
    for number, policy in enumerate(policies.split(",")):
        settings: dict[str, Any] = {"workload": str(workload), "admission": "best_effort"}
        if record is not None:
            settings["log"] = str(record / f"access-{number}.jsonl")
        with gateway(fitted or pool, policy, **settings):
            rows = asyncio.run(_play(per_min, count, tiers))
        on_time = [row["in_time"] for row in rows]
        good = [row["in_time"] and row["right"] for row in rows]
        from_simulation = simulated_shares(fitted or pool, workload, policy, per_min, tiers)
        shown = "  ".join(_share(values) for values in (on_time, good))
        print(f"{policy[-28:]:28s} {shown}    {from_simulation}", flush=True)
        print("   ", dict(Counter(row["model"] for row in rows)), flush=True)


async def _play(per_min: float, count: int, tiers: tuple[float, ...]) -> list[dict[str, Any]]:
    rng, asked = np.random.default_rng(0), questions("play")
    due_s = np.cumsum(rng.exponential(60.0 / per_min, count))
    picked, budget_s = rng.integers(len(asked), size=count), rng.choice(tiers, count)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        began_s = time.monotonic()

        async def one(k: int) -> dict[str, Any]:
            question = asked[picked[k]]
            body: dict[str, Any] = {
                "model": "inframind/auto",
                "messages": [{"role": "user", "content": question.text}],
                "temperature": 0.0,
                "inframind": {"budget_s": float(budget_s[k]), "domain": question.domain},
            }
            await asyncio.sleep(max(0.0, began_s + due_s[k] - time.monotonic()))
            text, _, model = await _ask(session, f"http://127.0.0.1:{PORT}", body)
            took_s = time.monotonic() - began_s - due_s[k]
            in_time = bool(model) and took_s <= budget_s[k]
            return {"model": model, "in_time": in_time, "right": question.is_right(text)}

        return list(await asyncio.gather(*(one(k) for k in range(count))))


def _share(values: list[bool]) -> str:
    """Mean in %, and half of its 95 % interval from ten blocks of time."""
    blocks = np.array([block.mean() for block in np.array_split(np.asarray(values, float), 10)])
    return f"{100 * blocks.mean():5.1f} ±{196 * blocks.std(ddof=1) / np.sqrt(10):4.1f}"


def simulated_shares(
    pool: str, workload: Path, policy: str, per_min: float, tiers: tuple[float, ...]
) -> str:
    """Play single calls in the surrogate: shares in time and solved in time, 16 episodes."""
    import gymnasium as gym

    from inframind_gym.policies import requires_of, resolve_policy

    chosen = resolve_policy(policy)
    arguments: dict[str, Any] = {"pool": pool, "workload": str(workload), "num_queries": 300}
    arguments |= {"observation": "index", "agents": {"single_call": True}, "split": "all"}
    arguments |= {"budget_s": list(tiers)} | requires_of(chosen)
    if arguments.get("level", "executor") == "executor":
        arguments["planner"] = {"topology": "IO", "num_agents": 1}
    rows = np.arange(16)
    env: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=len(rows), **arguments).unwrapped
    options = {"arrival_rate_per_min": np.full(len(rows), per_min)}
    observations, _ = env.reset(seed=rows.tolist(), options=options)
    chosen.reset(env.policy_spec(), rows.tolist())
    if not getattr(chosen, "carries_out_any_plan", True):
        chosen.plan_single_calls()  # type: ignore[attr-defined]
    running, actions = np.ones(len(rows), np.bool_), np.zeros_like(env.action_space.sample())
    shares = np.zeros((len(rows), 2))
    while running.any():
        here = np.flatnonzero(running)
        given = chosen.act_batch(observations[here], env.contexts()[here], here)
        actions[here] = given.reshape(len(here), *actions.shape[1:])
        observations, _, over, cut, _ = env.step(actions)
        of, records = env.completed()
        mine = running[of]
        in_time = records["latency_s"] <= records["budget_s"]
        for place, values in enumerate((in_time, in_time & (records["solved"] == 1))):
            np.add.at(shares[:, place], of[mine], values[mine] / 300.0)
        running &= ~(over | cut)
    half = 196 * shares.std(axis=0, ddof=1) / np.sqrt(len(rows))
    means = 100 * shares.mean(axis=0)
    return "  ".join(f"{mean:5.1f} ±{error:4.1f}" for mean, error in zip(means, half, strict=True))
