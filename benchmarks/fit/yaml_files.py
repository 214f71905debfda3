"""Write a fitted pool or workload as YAML, with the provenance of every constant beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.workload import TaskProfile, WorkloadConfig

POOL_HEAD: Final = """\
# The measured testbed: two B200 (192 GB each) with five models (FACTS §1). Placement, memory
# fractions, slots, lengths and polling are the published ones.
# Written by `python -m benchmarks.fit.measured`, which fits step costs, co-location and the
# workloads' answer lengths together to the latencies of the oblivious router (MasRouter) and to the
# token counts of the published runs:
#   base_s                fitted, one a model; it starts from H200 TPOT at batch 1 (FACTS §5).
#   per_seq_s             H200 TPOT from batch 1 to 16 (FACTS §5), less the KV reads, times one
#                         fitted factor for all models.
#   colocation_slowdown   fitted, one for both GPUs: about 1, as where processes take turns.
#   per_kv_token_s        KV bytes per token (FACTS §5) over 8 TB/s x 0.7: not fitted.
#   per_new_token_s       H100 prefill rates (FACTS §5) x 2.27, the ratio of the dense bf16 peaks
#                         (2.25 and 0.99 PFLOP/s): not fitted.
#   num_kv_blocks         (memory fraction x 192 GB - bf16 weights - 1 GB for activations) over 16
#                         tokens of KV.
"""


def pool_yaml(pool: PoolConfig) -> str:
    """The pool as a YAML file."""
    lines = [
        POOL_HEAD + f"name: {pool.name}",
        f'description: "{pool.description}"',
        f"scheduler: {pool.scheduler}",
        f"metrics_poll_s: {pool.metrics_poll_s}",
        f"queue_norm: {pool.queue_norm:g}",
        f"max_output_tokens: {pool.max_output_tokens}",
        "gpus:",
    ]
    for gpu in pool.gpus:
        memory = "" if gpu.memory_gb is None else f"memory_gb: {gpu.memory_gb:g}, "
        lines.append(
            f"  - {{name: {gpu.name}, device: {gpu.device}, {memory}"
            f"colocation_slowdown: {gpu.colocation_slowdown:.3g}}}"
        )
    lines.append("models:")
    for model in pool.models:
        card, step = model.server, model.server.step
        address = f"url: {model.url}" if model.url else f"port: {model.port}"
        lines += [
            f"  - name: {model.name}",
            f"    alias: {model.alias}",
            f"    gpu: {model.gpu}",
            f"    params_b: {model.params_b:g}",
            f"    gpu_memory_frac: {model.gpu_memory_frac:.2f}",
            f"    {address}",
            "    server:",
            f"      max_num_seqs: {card.max_num_seqs}",
            f"      max_num_batched_tokens: {card.max_num_batched_tokens}",
            f"      num_kv_blocks: {card.num_kv_blocks}",
            f"      max_model_len: {card.max_model_len}",
            f"      step: {{base_s: {step.base_s:.4g}, per_seq_s: {step.per_seq_s:.3e}, "
            f"per_kv_token_s: {step.per_kv_token_s:.3e}, "
            f"per_new_token_s: {step.per_new_token_s:.3e}}}",
        ]
    return "\n".join(lines) + "\n"


def workload_yaml(workload: WorkloadConfig, profile: TaskProfile, mixes: str) -> str:
    """A workload as a YAML file.

    Args:
        workload: what is not calibrated: name, description, sweep.
        profile: with the fitted constants.
        mixes: which measured cells the shares of the routers come from.
    """
    output, prompt, agents, quality = (
        profile.output,
        profile.prompt,
        profile.agents,
        profile.quality,
    )
    width = max(len(alias) for alias in profile.models) + 1
    models = [
        f"  {alias + ':':<{width}} {{share: {of.share:.3f}, "
        f"output_tokens_median: {of.output_tokens_median:.0f}, ability: {of.ability:.2f}}}"
        for alias, of in profile.models.items()
    ]
    counts = profile.planner.num_agents
    num_agents = _flow({str(n): share for n, share in counts.items()})
    if len(counts) == 1:
        num_agents = str(next(iter(counts)))
    gains = ", ".join(f"{name}: {value:g}" for name, value in quality.strategy_gain.items())
    factors = ", ".join(f"{name}: {value:g}" for name, value in output.strategy_factor.items())
    return "\n".join(
        [
            f"# {workload.description}.",
            "# Written by `python -m benchmarks.fit.measured`; § cites sections of FACTS.md.",
            f"name: {workload.name}",
            f'description: "{workload.description}"',
            f"num_queries: {workload.num_queries}",
            f"dataset: {profile.dataset}",
            f"domain: {profile.domain}",
            "",
            *_comment(
                f"planner and the models' shares: {mixes}, MasRouter, whose choices do not depend "
                "on the load. It has no prompt strategies; strategy_mix: mean over the measured "
                "cells of the published agent (`inframind`)."
            ),
            "planner:",
            f"  num_agents: {num_agents}",
            f"  topologies: {_flow(profile.planner.topologies)}",
            f"strategy_mix: {_flow(profile.strategy_mix)}",
            "",
            *_comment(
                "output_tokens_median: fitted, together with the pool's step costs, to the "
                "latencies of `mas` and the token counts of `inframind`; starts from the seconds "
                "per call at 10/min over the light-load seconds per token (§2)."
            ),
            *_comment(
                "ability: fitted to the accuracies of `mas` and, at a third of the weight, of "
                "`inframind`; the differences between models start from published accuracies (§8)."
            ),
            "models:",
            *models,
            "",
            *_comment(
                "sigma_query, sigma_call: fitted, the same for all datasets. difficulty_slope: of "
                "log length on difficulty over 29 models on MMLU-Pro "
                "(benchmarks/fit/fitted/outcomes.json), taken for all datasets. strategy_factor: "
                "within the ranges of §2."
            ),
            "output:",
            f"  sigma_query: {output.sigma_query:.3f}",
            f"  sigma_call: {output.sigma_call:.3f}",
            f"  difficulty_slope: {output.difficulty_slope:g}",
            f"  strategy_factor: {{{factors}}}",
            "",
            *_comment(
                "overhead_tokens: fitted, the same for all datasets: role, strategy and format "
                "instructions. message_frac: the whole answer of a predecessor is read, as the "
                "measured prompts say."
            ),
            "prompt:",
            f"  overhead_tokens: {prompt.overhead_tokens}",
            f"  message_frac: {prompt.message_frac:g}",
            "",
            *_comment(
                "Rules of MasRouter's agents, read off its source: roles that answer twice, and "
                "code that is handed on once it passes the tests which the task shows."
            ),
            "agents:",
            f"  role_calls: {str(agents.role_calls).lower()}",
            f"  visible_tests: {agents.visible_tests:g}",
            "",
            *_comment(
                "latent_correlation, truncated_right_frac: measured on 29 models on MMLU-Pro "
                "(benchmarks/fit/fitted/outcomes.json), taken for all. difficulty_sd: measured "
                "there too, and fitted with the abilities for the other datasets. The gains are "
                "assumptions, not measured: strategy_gain stays below the 9-19 points that "
                "reasoning is worth on MMLU-Pro (§8), several agents bring 0-2 points on knowledge "
                "and 4-12 on code (§8)."
            ),
            "quality:",
            f"  discrimination: {quality.discrimination:g}",
            f"  difficulty_sd: {quality.difficulty_sd:g}",
            f"  strategy_gain: {{{gains}}}",
            f"  role_gain: {quality.role_gain:g}",
            f"  info_gain: {quality.info_gain:g}",
            f"  final_info_gain: {quality.final_info_gain:g}",
            f"  reflection_gain: {quality.reflection_gain:g}",
            f"  latent_correlation: {quality.latent_correlation:g}",
            f"  truncated_right_frac: {quality.truncated_right_frac:g}",
            "",
        ]
    )


def _flow(shares: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {share:.3f}" for name, share in shares.items()) + "}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 98)]
