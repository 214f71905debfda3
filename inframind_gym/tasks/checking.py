"""Checking that tasks can be judged: their own reference answers have to pass."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from inframind_gym.errors import ConfigError
from inframind_gym.tasks.loaders import read_folder
from inframind_gym.tasks.records import TaskRecord
from inframind_gym.tasks.sandbox import PACKAGES, Sandbox


@dataclass(frozen=True, slots=True)
class ReferenceCheck:
    """Result of judging the reference answers of tasks that have tests.

    Attributes:
        passed: references that pass.
        failed: (dataset and id, reason) of those that do not.
        without: tasks with tests that have no reference.
        others: tasks of other kinds, which need none.
    """

    passed: int
    failed: tuple[tuple[str, str], ...]
    without: int
    others: int

    def lines(self) -> list[str]:
        """Return the share that passes, and a line for every reference that does not."""
        run = self.passed + len(self.failed)
        share = f"{self.passed} of {run} reference answers pass"
        if run:
            share += f" ({100 * self.passed / run:.1f} %)"
        rest = f"{self.without} tasks have tests and no reference, {self.others} have no tests"
        return [f"{share}; {rest}", *(f"  {name}: {reason}" for name, reason in self.failed)]


def check_references(records: Sequence[TaskRecord], sandbox: Sandbox) -> ReferenceCheck:
    """Run every reference answer against its task's tests.

    Raises:
        SandboxError: code cannot be isolated on this machine.
    """
    tests = [record for record in records if record.answer.kind == "tests"]
    run = [record for record in tests if record.answer.reference]

    def reason(record: TaskRecord) -> str | None:
        try:
            answer = record.answer
            verdict = sandbox.run_tests(answer.reference, answer, record.text, record.id)
        except ConfigError as error:
            return str(error)
        return None if verdict.passed else verdict.reason

    with ThreadPoolExecutor(sandbox.workers) as pool:
        reasons = list(pool.map(reason, run))
    failed = tuple(
        (f"{record.dataset} {record.id}", why)
        for record, why in zip(run, reasons, strict=True)
        if why is not None
    )
    return ReferenceCheck(
        passed=len(run) - len(failed),
        failed=failed,
        without=len(tests) - len(run),
        others=len(records) - len(tests),
    )


def check_tasks(source: str | Path, packages: Sequence[str] = PACKAGES) -> ReferenceCheck:
    """Read a folder of tasks, or one file, and judge its reference answers in the sandbox.

    Args:
        source: the folder or file.
        packages: what code may import beside the standard library.

    Raises:
        ConfigError: a package is not installed.
        TaskError: the files cannot be read, or a record is broken; names file, line and key.
        SandboxError: code cannot be isolated on this machine.
    """
    records = read_folder(Path(source))
    with Sandbox(packages=packages) as sandbox:
        return check_references(records, sandbox)
