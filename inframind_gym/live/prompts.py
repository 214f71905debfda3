"""Prompts of calls: role, question, the answers of others, the task and the format of the answer.

For the live backend alone; the surrogate needs no texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypedDict

import yaml

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import (
    CUSTOM,
    DEBATE_ROUNDS,
    FINAL,
    SECOND,
    STRATEGIES,
    STRATEGY_INSTRUCTIONS,
    TOPOLOGIES,
)
from inframind_gym.tasks.grading import without_reasoning
from inframind_gym.tasks.loaders import LETTERS
from inframind_gym.tasks.taskset import TaskSet

TEMPLATE_TOKENS: Final = 64  # what a model's chat template may add around two messages
_LEAST: Final = 24  # tokens below which a part of an answer is of no use
_PIECES: Final = re.compile(r"[A-Za-z]+|\d|[^\S\n]+|\n|[^\sA-Za-z\d]")
_MARK: Final = "\n[... {0} characters left out ...]\n"
_TEXTS: Final = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ROLE_BRIEFS: Final = tuple(str(_TEXTS[role.domain][role.name]) for role in ROLES)
DECIDER_BRIEF: Final = str(_TEXTS["Decider"])
_INSTRUCTIONS: Final = _TEXTS["Instructions"]


class Message(TypedDict):
    """A message of a chat, as the OpenAI API has it."""

    role: Literal["system", "user"]
    content: str


class Prompts:
    """The prompts of the calls of a task set; ``Call.task`` is an index into it."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks

    def messages(self, call: Call, answers: Mapping[int, str], limit_tokens: int) -> list[Message]:
        """Return the messages of a call: one of the system, one of the user.

        Args:
            call: the call.
            answers: by node of the query's workflow; one that is missing or blank is shown as such.
            limit_tokens: size of the prompt at most. The answers of others are cut to it, the
                longest first. A ConfigError: it does not fit even without them.
        """
        system = DECIDER_BRIEF if call.phase == FINAL else ROLE_BRIEFS[call.role]
        parts = _parts(call, answers)
        task = self._task(call)
        question = f"Question:\n{self._tasks.texts[call.task].strip()}"

        def user(most: int) -> str:
            shown = [f"### {t}\n{cut(text, most)}\n### End of the answer" for t, text in parts]
            return "\n\n".join([question, *shown, task])

        fixed = TEMPLATE_TOKENS + estimate_upper(system) + estimate_upper(user(0))
        if fixed > limit_tokens:
            raise ConfigError(
                f"task {self._tasks.ids[call.task]!r} does not fit: its prompt takes {fixed} "
                f"tokens without the answers of other agents, and {limit_tokens} are left of the "
                f"model's context beside the {call.max_tokens} of the answer. Serve the model "
                "with a larger max_model_len, lower max_tokens, or leave the task out."
            )
        # Parts begin and end with whole lines: their estimates add up.
        sizes = [estimate_upper(text) for _, text in parts]
        content = user(shares(sizes, limit_tokens - fixed))
        return [{"role": "system", "content": system}, {"role": "user", "content": content}]

    def _task(self, call: Call) -> str:
        """Return the task of a call, which follows the question and the answers of others."""
        strategy = STRATEGIES[call.strategy]
        topology = TOPOLOGIES[call.topology] if call.topology < len(TOPOLOGIES) else CUSTOM
        if call.phase == FINAL:
            lines = ["Decide which answer is right, or give the right one if none of them is."]
        elif call.phase == SECOND:
            lines = [f"Check your first answer before it is handed in. {self.check(call)}".rstrip()]
            lines += ["Then answer the question again, in full, corrected where it has to be."]
        elif topology == "Debate" and call.reads:
            lines = [str(_INSTRUCTIONS["second_round"])]
        elif call.reads:
            others = "the agent before you" if topology == "Chain" else "the agents before you"
            lines = [str(_INSTRUCTIONS["others"].format(others=others))]
        else:  # the instruction of Flash, "no reasoning", excludes that of CoT, "take steps"
            steps = topology == "CoT" and strategy != "Flash"
            lines = [str(_INSTRUCTIONS["alone"]["CoT" if steps else "IO"])]
        lines += [STRATEGY_INSTRUCTIONS[strategy], self.form(call)]
        return "\n".join(filter(None, lines))

    def check(self, call: Call) -> str:
        """Return how an agent checks its own answer."""
        return str(_INSTRUCTIONS["checks"][self._tasks.answers[call.task].kind])

    def form(self, call: Call) -> str:
        """Return the instruction on the form of the answer.

        It reveals the answer's kind, the number of options and the function's name, and no more.
        """
        answer, role = self._tasks.answers[call.task], ROLES[call.role]
        leaves_code_to_others = role.domain == "Code" and not role.writes_code
        if call.phase != FINAL and answer.kind == "tests" and leaves_code_to_others:
            return str(_INSTRUCTIONS["design"])
        span = f"A to {LETTERS[len(answer.options) - 1]}" if answer.options else "of the options"
        name = f" `{answer.entry_point}`" if answer.entry_point else " that is asked for"
        text = str(_TEXTS["Formats"][answer.kind])
        return text.replace("{span}", span).replace("{name}", name)


def _parts(call: Call, answers: Mapping[int, str]) -> list[tuple[str, str]]:
    """Return title and text of the answers that a call reads, each text once."""
    own = call.node if call.phase == SECOND else -1
    debate = call.topology == TOPOLOGIES.index("Debate")
    # A debate's second round reads all agents, and the agents' first nodes come first.
    agents = len(set(call.reads) - {own}) if debate else 0
    own_before = call.node - agents if debate and call.phase != FINAL and agents else -1
    texts: dict[int, str] = {}
    readers: dict[int, list[int]] = {}
    for node, source in zip(call.reads, call.sources or call.reads, strict=True):
        writer = source if source in answers else node
        texts[writer] = without_reasoning(answers.get(writer, "")).strip()
        readers.setdefault(writer, []).append(node)
    parts = []
    for writer, nodes in readers.items():
        if own in nodes:
            title = "Your first answer"
        elif own_before in nodes:
            title = "Your own answer of the first round"
        else:
            numbers = [str(call.reads.index(n) + 1 if debate else n + 1) for n in nodes]
            several = f"s {', '.join(numbers[:-1])} and" if len(numbers) > 1 else ""
            title = f"Answer of agent{several} {numbers[-1]}"
        parts.append((title, texts[writer] or "[no answer]"))
    return sorted(parts, key=lambda part: part[0].startswith("Your"))  # one's own comes last


def estimate_upper(text: str) -> int:
    """Return a number of tokens that the tokenizers of current models seldom exceed.

    One for every three letters of a word, every digit, every sign and every line break; the bytes
    of what is not ASCII. About 1.5 times what they make of English prose.
    """
    total = 0
    for piece in _PIECES.findall(text):
        if piece.isascii() and piece.isalpha():
            total += -(-len(piece) // 3)
        elif piece.isspace():
            total += 1 if piece == "\n" else (len(piece) - 1 + 3) // 4
        else:
            total += len(piece.encode("utf-8", "replace"))
    return total


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` tokens, its middle left out and the cut marked.

    A third of what is kept is the beginning, two thirds are the end, which holds answers. Where
    `limit` leaves nothing of use, a note replaces the text, whatever the limit.
    """
    tokens = estimate_upper(text)
    if tokens <= limit:
        return text
    if limit >= _LEAST:
        keep = len(text) * limit // tokens
        while keep > 20:
            head = keep // 3
            tail = keep - head
            mark = _MARK.format(len(text) - keep)
            short = text[:head].rstrip() + mark + text[len(text) - tail :].lstrip()
            if estimate_upper(short) <= limit:
                return short
            keep = keep * 9 // 10
    return min(f"[{len(text)} characters left out]", text, key=len)


def shares(sizes: Sequence[int], total: int) -> int:
    """Return the largest size that no text may exceed so that all of them fit into `total`.

    The longest are cut first: max h with sum(min(size, h)) <= total.
    """
    left, several = total, len(sizes)
    for size in sorted(sizes):
        if size * several > left:
            return left // several
        left -= size
        several -= 1
    return max(sizes, default=0)


assert DEBATE_ROUNDS == 2  # the second round reads the first, and nothing else
