"""Judging what a model wrote, of every kind of answer.

Reading is safe and comes first (``graders.py``). Formulas that differ as texts are compared by
math-verify, and code is run against the task's tests: both in the sandbox, and nowhere else.
"""

from __future__ import annotations

from inframind_gym.tasks.extract import (
    boxed,
    final_code,
    final_expression,
    final_part,
    needs_working_out,
    without_reasoning,
)
from inframind_gym.tasks.graders import grade
from inframind_gym.tasks.sandbox import Sandbox
from inframind_gym.tasks.sandbox.process import MAX_FORMULA
from inframind_gym.tasks.taskset import Answer


def judge(answer: Answer, text: str, sandbox: Sandbox, question: str = "", task: str = "") -> bool:
    """Return whether a response is right.

    Takes microseconds for numbers and letters, a few milliseconds for formulas, about 25 ms of a
    processor for code, and never longer than the sandbox's limits. Threads can call it.

    Args:
        answer: a task's answer.
        text: the whole response of a model. A train of thought that ends on ``</think>`` does not
            count, nor does what stands before the last 64,000 characters. A response in which no
            answer is found is wrong.
        sandbox: where code is run and formulas are compared.
        question: the task's text (see :meth:`Sandbox.run_tests`).
        task: the task's name, for messages.

    Raises:
        ConfigError: the task's tests fail before they first call the answer.
        TaskError: the answer itself is not valid.
        SandboxError: the sandbox cannot be had; nothing was run.
    """
    text = final_part(without_reasoning(text))
    if answer.kind == "tests":
        code = final_code(text, answer.entry_point)
        return bool(code) and sandbox.run_tests(code, answer, question, task).passed
    found = final_expression(text) if answer.kind == "expression" else ""
    if len(found) > MAX_FORMULA:
        return False
    if answer.kind == "number":
        inside = boxed(text)
        if inside is not None and needs_working_out(inside):
            return sandbox.same_formula(answer.value, inside)  # a number in it is not its value
    if grade(answer, text):
        return True
    return answer.kind == "expression" and sandbox.same_formula(answer.value, found)
