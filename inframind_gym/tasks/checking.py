"""Checking that tasks can be judged: their own reference answers have to pass."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inframind_gym.errors import ConfigError
from inframind_gym.tasks.loaders import read_folder
from inframind_gym.tasks.records import TaskRecord
from inframind_gym.tasks.sandbox import PACKAGES, Sandbox


def check_tasks(source: str | Path, packages: Sequence[str] = PACKAGES) -> tuple[str, list[str]]:
    """Read a folder of tasks, or one file, and judge its reference answers in the sandbox.

    Args:
        source: the folder or file.
        packages: what code may import beside the standard library.

    Returns:
        The share of the references that pass, and a line for each that does not.

    Raises:
        ConfigError: a package is not installed.
        TaskError: the files cannot be read, or a record is broken; names file, line and key.
        SandboxError: code cannot be isolated on this machine.
    """
    records = read_folder(Path(source))
    tests = [record for record in records if record.answer.kind == "tests"]
    run = [record for record in tests if record.answer.reference]

    def failure(record: TaskRecord) -> str | None:
        answer = record.answer
        try:
            verdict = sandbox.run_tests(answer.reference, answer, record.text, record.id)
        except ConfigError as error:
            return f"{record.dataset} {record.id}: {error}"
        return None if verdict.passed else f"{record.dataset} {record.id}: {verdict.reason}"

    with Sandbox(packages=packages) as sandbox, ThreadPoolExecutor(sandbox.workers) as pool:
        failed = [line for line in pool.map(failure, run) if line is not None]
    passed = len(run) - len(failed)
    share = f" ({100 * passed / len(run):.1f} %)" if run else ""
    return (
        f"{passed} of {len(run)} reference answers pass{share}; {len(tests) - len(run)} tasks have "
        f"tests and no reference, {len(records) - len(tests)} have no tests",
        failed,
    )
