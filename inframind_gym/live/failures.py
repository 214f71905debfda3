"""Causes of failed starts, found in logs, and their remedies."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Final

_MOST: Final = 1 << 20  # bytes at the end of a log that are read
# vLLM puts its processes' names before their lines, in colours on a terminal.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_SPEAKER: Final = re.compile(
    r"^(\([^()]*pid=\d+\)\s*)?((DEBUG|INFO|WARNING|ERROR)\s[\d-]+ [\d:.]+ (\[[^\]]*\]\s?)?)?"
)
_ERROR: Final = re.compile(r"^\s*(Value error|[A-Za-z_.]*(Error|Exception|Interrupt))\b[:,].*\S")
_USAGE: Final = re.compile(r"\berror: .*\S")  # of a command line
# Only reports that another process failed.
_EMPTY: Final = re.compile(
    r"See root cause above|Engine core (proc|initialization)|validation error"
)
_ADVICE: Final = (
    (
        r"Free memory on device.*less than desired",
        "the GPU has less free memory than this model's gpu_memory_frac: stop what else is on it "
        "(nvidia-smi), or lower the fraction",
    ),
    (
        r"No available memory for the cache blocks|KV cache is needed, which is larger than",
        "the model's share of the GPU does not hold its weights and the KV cache of one request: "
        "raise gpu_memory_frac or lower server.max_model_len",
    ),
    (r"Error in memory profiling", "something else on the GPU freed memory meanwhile: start again"),
    (
        r"out of memory|OutOfMemoryError",
        "memory ran out: lower gpu_memory_frac, server.max_num_seqs or max_num_batched_tokens",
    ),
    (
        r"gated repo|GatedRepoError|401 Client Error|403 Client Error",
        "the model's licence has to be accepted on huggingface.co, and HF_TOKEN set",
    ),
    (
        r"Cannot find an appropriate cached snapshot|outgoing traffic has been disabled|"
        r"couldn't connect to|LocalEntryNotFoundError|Max retries exceeded|"
        r"Temporary failure in name resolution",
        "the model is not on this machine and cannot be fetched: give `path` a folder that holds "
        "it, or go online",
    ),
    (
        r"is not a local folder and is not a valid model identifier|Repository Not Found",
        "there is no such model: check `name` and `path`",
    ),
    (r"address already in use", "another program has the port: choose another `port`"),
    (
        r"unrecognized arguments",
        "this vLLM has no such argument: check `extra_args` and its version",
    ),
    (r"greater than the derived max_model_len", "lower server.max_model_len to the model's own"),
    (r"Sleep mode is not supported", "leave sleep_mode out: there is none on this machine"),
    (
        r"No CUDA GPUs are available|Failed to infer device type|no CUDA-capable device",
        "no GPU is to be seen from here: check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES",
    ),
)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log; none where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _MOST))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (_COLOURS.sub("", line).rstrip() for line in text.splitlines())
    return list(deque((line for line in lines if line), maxlen=count))


def without_speaker(line: str) -> str:
    """Return a line without its process, time and place in the code."""
    return _SPEAKER.sub("", line).strip()


def cause(log: Path) -> str:
    """Return the error that a log ends with; "" where there is none.

    Where one process reports that another one failed, the error of that one.
    """
    lines = [without_speaker(line) for line in last_lines(log, 4000)]
    errors = [line for line in lines if _ERROR.match(line) or _USAGE.search(line)]
    specific = [line for line in errors if not _EMPTY.search(line)]
    return (specific or errors or [""])[-1].strip()[:500]


def advice(log: Path) -> str:
    """Return the remedy; "" where none is known."""
    text = "\n".join(last_lines(log, 4000))
    found = (what for pattern, what in _ADVICE if re.search(pattern, text, re.IGNORECASE))
    return next(found, "")
