"""The prompt of a call: role, question, what it reads of others, what to do and how to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypedDict

from inframind_gym.errors import ConfigError
from inframind_gym.live.prompts.formats import DESIGN, answer_format, check
from inframind_gym.live.prompts.roles import DECIDER_BRIEF, ROLE_BRIEFS, designs_only
from inframind_gym.live.prompts.size import Count, cut, estimate_upper, shares
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.topology import (
    CUSTOM,
    DEBATE_ROUNDS,
    FINAL,
    SECOND,
    STRATEGIES,
    STRATEGY_INSTRUCTIONS,
    TOPOLOGIES,
)
from inframind_gym.tasks.extract import without_reasoning
from inframind_gym.tasks.taskset import TaskSet

TEMPLATE_TOKENS: Final = 64  # what a model's chat template may add around two messages
_ATTEMPTS: Final = 8


class Message(TypedDict):
    """A message of a chat, as the OpenAI API has it."""

    role: Literal["system", "user"]
    content: str


class _Part(NamedTuple):
    """An answer that a prompt shows."""

    title: str
    text: str


_ALONE: Final = {
    "IO": "Answer the question.",
    "CoT": "Answer the question. Break it into steps and take them in order.",
}
_SECOND_ROUND: Final = (
    "This is the second round of a debate. Compare your own answer of the first round with those "
    "of the others. Where they differ, find out which is right. Then answer the question again, in "
    "full; keep to your answer if it stands."
)


class Prompts:
    """The prompts of the calls of a task set.

    Example:
        >>> prompts = Prompts(load_tasks("builtin"))  # doctest: +SKIP
        >>> prompts.messages(call, {0: "It is 42."}, limit_tokens=14336)  # doctest: +SKIP
        [{'role': 'system', 'content': ...}, {'role': 'user', 'content': ...}]
    """

    def __init__(self, tasks: TaskSet) -> None:
        """Make the prompts of a task set.

        Args:
            tasks: what ``Call.task`` is an index into.
        """
        self._tasks = tasks

    def messages(
        self,
        call: Call,
        answers: Mapping[int, str],
        limit_tokens: int,
        count_tokens: Count | None = None,
    ) -> list[Message]:
        """Return the messages of a call: one of the system, one of the user.

        Args:
            call: what is called.
            answers: by node of the query's workflow, what it answered; a node that is missing, or
                whose text is blank, is said to have given no answer.
            limit_tokens: size of the prompt at most, which is the model's context less
                ``call.max_tokens``. The answers of others are cut to it, the longest first.
            count_tokens: the model's count of a text's tokens; None: an estimate that errs on the
                long side.

        Raises:
            ConfigError: the prompt does not fit even without the answers of others.
        """
        count = count_tokens or estimate_upper
        system = DECIDER_BRIEF if call.phase == FINAL else ROLE_BRIEFS[call.role]
        parts = _parts(call, answers)
        ask = self._ask(call)
        question = f"Question:\n{self._tasks.texts[call.task].strip()}"
        fixed = TEMPLATE_TOKENS + count(system) + count(_join(question, _emptied(parts), ask))
        if fixed > limit_tokens:
            raise ConfigError(
                f"task {self._tasks.ids[call.task]!r} does not fit: its prompt takes {fixed} "
                f"tokens without the answers of other agents, and {limit_tokens} are left of the "
                f"model's context beside the {call.max_tokens} of the answer. Serve the model "
                "with a larger max_model_len, lower max_tokens, or leave the task out."
            )
        room = limit_tokens - fixed
        sizes = [count(part.text) for part in parts]
        for _ in range(_ATTEMPTS):
            most = shares(sizes, room)
            shown = [part._replace(text=cut(part.text, most, count)) for part in parts]
            user = _join(question, shown, ask)
            over = TEMPLATE_TOKENS + count(system) + count(user) - limit_tokens
            if over <= 0:
                break
            room -= over  # joined texts can take a little more than their parts
        else:
            user = _join(question, _emptied(parts), ask)
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def _ask(self, call: Call) -> str:
        """Return what is asked of a call, after the question and what it reads."""
        answer = self._tasks.answers[call.task]
        strategy = STRATEGIES[call.strategy]
        lines = [_instruction(call, strategy)]
        if call.phase == SECOND:
            lines[0] += f" {check(answer)}"
            lines.append("Then answer the question again, in full, corrected where it has to be.")
        lines.append(STRATEGY_INSTRUCTIONS[strategy])
        if call.phase != FINAL and answer.kind == "tests" and designs_only(call.role):
            lines.append(DESIGN)
        else:
            lines.append(answer_format(answer))
        return "\n".join(lines)


def _instruction(call: Call, strategy: str) -> str:
    """Return what to do with what the prompt shows."""
    topology = TOPOLOGIES[call.topology] if call.topology < len(TOPOLOGIES) else CUSTOM
    if call.phase == FINAL:
        return "Decide which answer is right, or give the right one if none of them is."
    if call.phase == SECOND:
        return "Check your first answer before it is handed in."
    if topology == "Debate" and call.reads:
        return _SECOND_ROUND
    if call.reads:
        others = "the agent before you" if topology == "Chain" else "the agents before you"
        return (
            f"Answer the question. Use what {others} found where it is right, and correct it "
            "where it is wrong."
        )
    # "No reasoning" and "take steps" are not both said.
    return _ALONE["IO" if strategy == "Flash" else topology if topology in _ALONE else "IO"]


def _parts(call: Call, answers: Mapping[int, str]) -> list[_Part]:
    """Return the answers that a call reads, each text once."""
    own = call.node if call.phase == SECOND else -1
    debate = call.topology == TOPOLOGIES.index("Debate")
    # In a debate's second round everybody is read, and the agents' first nodes come first.
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
            title = _title([call.reads.index(n) + 1 if debate else n + 1 for n in nodes])
        parts.append(_Part(title, texts[writer] or "[no answer]"))
    parts.sort(key=lambda part: part.title.startswith("Your"))  # one's own comes last
    return parts


def _title(agents: Sequence[int]) -> str:
    """Return the title of an answer that one agent gave, or that several agree on."""
    if len(agents) == 1:
        return f"Answer of agent {agents[0]}"
    return f"Answer of agents {', '.join(map(str, agents[:-1]))} and {agents[-1]}"


def _emptied(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts without their texts, as short as they can get."""
    return [part._replace(text=cut(part.text, 0, estimate_upper)) for part in parts]


def _join(question: str, parts: Sequence[_Part], ask: str) -> str:
    """Return the user's message."""
    shown = [f"### {part.title}\n{part.text}\n### End of the answer" for part in parts]
    return "\n\n".join([question, *shown, ask])


assert DEBATE_ROUNDS == 2  # the second round reads the first, and nothing else
