"""Record vLLM's scheduler anew: `.venv/bin/python -m tests.simulator.vllm_scheduler.rerecord`.

For a new version of vLLM (`constraints-vllm.txt`) or other scenarios; needs the environment that
`make live` builds.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.simulator.vllm_scheduler.agreement import RECORDED
from tests.simulator.vllm_scheduler.scenarios import (
    Scenario,
    evicted_after_served,
    random_scenario,
    random_scenarios,
)

ROOT: Final = Path(__file__).resolve().parents[3]
VLLM_PYTHON: Final = ROOT / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin" / "python"
RECORDED_SCENARIOS: Final = [
    *random_scenarios(range(4)),
    random_scenario("starved_last_first", 181),  # what a victim was given returns to the budget
    evicted_after_served(),
]


def record(scenarios: Sequence[Scenario]) -> list[str]:
    """Drive vLLM's scheduler through the scenarios, in a process of its own.

    Returns:
        Lines of JSON: one about vLLM, then one for each scenario.

    Raises:
        RuntimeError: It failed; with what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "scenarios.json"), Path(folder, "traces.jsonl")
        source.write_text(json.dumps(scenarios))
        script = Path(__file__).with_name("record.py")
        process = subprocess.run(
            [VLLM_PYTHON, "-P", script, source, target], capture_output=True, text=True
        )
        if process.returncode:
            raise RuntimeError(f"record.py failed:\n{process.stdout}\n{process.stderr}")
        return target.read_text().splitlines()


def main() -> None:
    """Replace the recording that is kept with the tests."""
    lines = record(RECORDED_SCENARIOS)
    RECORDED.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print(f"{RECORDED.name}: {len(lines) - 1} scenarios, {lines[0]}")


if __name__ == "__main__":
    main()
