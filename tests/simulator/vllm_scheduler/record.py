"""Record what vLLM's own scheduler decides: scenarios in, one trace for each of them out.

    .venv-vllm/bin/python -P tests/simulator/vllm_scheduler/record.py scenarios.json traces.jsonl

Runs with vLLM's interpreter and imports nothing of this project. No model is loaded: the scheduler
is told after every step that each request which completed its prefill has sampled a token. The
loops are those of `EngineCore.step` and `EngineCore.step_with_batch_queue` (vLLM
`v1/engine/core.py`), where time does not matter: what a call sees is a question of order alone.

A trace has an entry for each call of `schedule`. Calls that find nothing to do are entered as well:
requests may have been submitted before them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm import SamplingParams, __version__
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MAX_MODEL_LEN: Final = 1 << 20
TINY_LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32000,
    "max_position_embeddings": MAX_MODEL_LEN,
}
SAMPLED_TOKEN: Final = 7


def load_model_config(folder: Path) -> ModelConfig:
    """A model for vLLM to schedule: a configuration file, without weights or tokenizer."""
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MAX_MODEL_LEN
    )


def make_scheduler(server: dict[str, Any], model_config: ModelConfig) -> Scheduler:
    """The scheduler that a vLLM server with these limits runs, everything else at its default."""
    vllm_config = VllmConfig(
        model_config=model_config,
        scheduler_config=SchedulerConfig(
            max_num_seqs=server["max_num_seqs"],
            max_num_batched_tokens=server["max_num_batched_tokens"],
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            policy=server["policy"],
            async_scheduling=server["async_scheduling"],
        ),
        cache_config=CacheConfig(
            block_size=server["block_size"], enable_prefix_caching=server["prefix_caching"]
        ),
    )
    vllm_config.cache_config.num_gpu_blocks = server["num_kv_blocks"]
    attention = FullAttentionSpec(
        block_size=server["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    # vLLM turns async scheduling off where it has no accelerator; the scheduler runs without one.
    vllm_config.scheduler_config.async_scheduling = server["async_scheduling"]
    scheduler_class = AsyncScheduler if server["async_scheduling"] else Scheduler
    return scheduler_class(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=server["num_kv_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=server["block_size"],
    )


def make_request(identity: int, fields: dict[str, Any], block_size: int) -> Request:
    """A request whose prompt shares no token with that of any other."""
    return Request(
        request_id=str(identity),
        prompt_token_ids=[
            (identity + 1) * MAX_MODEL_LEN + position for position in range(fields["prompt_tokens"])
        ],
        sampling_params=SamplingParams(max_tokens=fields["output_tokens"], ignore_eos=True),
        pooling_params=None,
        priority=fields["priority"],
        arrival_time=float(identity),
        block_hasher=get_request_block_hasher(block_size, sha256),
    )


class Step(NamedTuple):
    """A step that has been scheduled."""

    output: SchedulerOutput
    call: dict[str, Any]
    emitting: set[str]  # requests that sample a token in it


class Recorder:
    """One server, driven through one scenario."""

    def __init__(self, scenario: dict[str, Any], model_config: ModelConfig) -> None:
        self.server = scenario["server"]
        self.requests = [
            make_request(i, fields, self.server["block_size"])
            for i, fields in enumerate(scenario["requests"])
        ]
        self.arrivals = deque(enumerate(fields["step"] for fields in scenario["requests"]))
        self.scheduler = make_scheduler(self.server, model_config)
        self.depth = 2 if self.server["async_scheduling"] else 1  # steps in flight at once
        self.calls: list[dict[str, Any]] = []
        self.in_flight: deque[Step] = deque()
        self.steps = 0  # calls so far that gave somebody tokens

    def run(self) -> list[dict[str, Any]]:
        """Serve all requests and return the calls of `schedule`."""
        while self.arrivals or self.scheduler.get_num_unfinished_requests():
            self.schedule(self.submit())
            while len(self.in_flight) == self.depth:
                self.finish_step()
            if not self.scheduler.get_num_unfinished_requests():
                while self.in_flight:
                    self.finish_step()
        return self.calls

    def submit(self) -> list[int]:
        """Hand in what has arrived; when there is nothing else to do, the next arrivals.

        Of two calls at the same instant, the second sees what the first one saw.
        """
        idle = not self.scheduler.get_num_unfinished_requests()
        if self.depth > 1 and not idle and not self.calls[-1]["overlaps"]:
            return []
        due = max(self.steps, self.arrivals[0][1]) if idle else self.steps
        submitted = []
        while self.arrivals and self.arrivals[0][1] <= due:
            identity, _ = self.arrivals.popleft()
            self.scheduler.add_request(self.requests[identity])
            submitted.append(identity)
        return submitted

    def schedule(self, submitted: list[int]) -> None:
        """Let the scheduler decide on one step, and note what it decided."""
        overlaps = any(step.output.total_num_scheduled_tokens for step in self.in_flight)
        num_preemptions = [request.num_preemptions for request in self.requests]
        output = self.scheduler.schedule()
        resumed = output.scheduled_cached_reqs
        admitted = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        admitted += [
            (identity, found)
            for identity, found in zip(resumed.req_ids, resumed.num_computed_tokens, strict=True)
            if identity in resumed.resumed_req_ids
        ]
        position = {request.request_id: i for i, request in enumerate(self.scheduler.running)}
        call = {
            "submitted": submitted,
            "overlaps": overlaps,
            "tokens": [[int(i), tokens] for i, tokens in output.num_scheduled_tokens.items()],
            "admitted": [
                [int(i), found] for i, found in sorted(admitted, key=lambda a: position[a[0]])
            ],
            "evicted": [
                i
                for i, request in enumerate(self.requests)
                if request.num_preemptions > num_preemptions[i]
            ],
            "finished": [],
        }
        self.calls.append(call)
        self.steps += bool(output.total_num_scheduled_tokens)
        emitting = {
            identity
            for identity in output.num_scheduled_tokens
            if not self.requests[int(identity)].is_prefill_chunk
        }
        self.in_flight.append(Step(output, call, emitting))

    def finish_step(self) -> None:
        """Report the oldest step in flight as done."""
        step = self.in_flight.popleft()
        served = list(step.output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            step.output,
            ModelRunnerOutput(
                req_ids=served,
                req_id_to_index={identity: i for i, identity in enumerate(served)},
                sampled_token_ids=[
                    [SAMPLED_TOKEN] if identity in step.emitting else [] for identity in served
                ],
            ),
        )
        step.call["finished"] = [
            int(identity) for identity in served if self.requests[int(identity)].is_finished()
        ]


def main() -> None:
    """Read a JSON list of scenarios; write a line about vLLM, then one for each of them."""
    source, target = map(Path, sys.argv[1:])
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder, target.open("w") as file:
        model_config = load_model_config(Path(folder))
        file.write(json.dumps({"vllm": __version__}) + "\n")
        for scenario in json.loads(source.read_text()):
            calls = Recorder(scenario, model_config).run()
            line = json.dumps({"scenario": scenario, "calls": calls}, separators=(",", ":"))
            file.write(line + "\n")


if __name__ == "__main__":
    main()
