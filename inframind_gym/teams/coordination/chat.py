"""A conversation with the team: lines in, answers out, history kept within the context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.console import Console

from inframind_gym.errors import InfraMindError
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.report import context_bar, print_answer
from inframind_gym.teams.coordination.response import UNANSWERED
from inframind_gym.teams.coordination.system import MultiAgentCoordinator

_COMMANDS: Final = "/trace, /context, /clear, /help, /quit"


class Chat:
    """One conversation.

    Args:
        coordinator: Answers.
        settings: Settings of every query.
        console: Where answers are printed.
        read: Reads a line; EOFError ends the conversation.

    Attributes:
        history: Messages so far, trimmed where they exceed the context.
        questions: Number of questions that were answered.
    """

    def __init__(
        self,
        coordinator: MultiAgentCoordinator,
        settings: QuerySettings,
        console: Console,
        read: Callable[[str], str] = input,
    ) -> None:
        self.history: list[Mapping[str, Any]] = []
        self.questions = 0
        self._coordinator, self._settings = coordinator, settings
        self._console, self._read, self._shows_trace = console, read, False

    def run(self) -> None:
        """Talk until the user ends it."""
        self._say(f"A question, or {_COMMANDS}.")
        while True:
            try:
                line = self._read("> ").strip()
            except (EOFError, KeyboardInterrupt):
                self._say("")
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                try:
                    self._answer(line)
                except KeyboardInterrupt:  # ends the answer, not the conversation
                    self._say("stopped")

    def _command(self, line: str) -> None:
        if line == "/trace":
            self._shows_trace = not self._shows_trace
            self._say(f"trace {'on' if self._shows_trace else 'off'}")
        elif line == "/context":
            self._say(self._bar(), f"{len(self.history)} messages")
        elif line == "/clear":
            self.history = []
            self._say("forgotten")
        elif line == "/help":
            self._say(f"A question, or {_COMMANDS}.")
        else:
            self._say(f"{line} is no command: {_COMMANDS}.")

    def _answer(self, line: str) -> None:
        try:
            response = self._coordinator.process_query(line, self.history, self._settings)
        except InfraMindError as error:
            self._say(f"error: {error}")
            return
        print_answer(self._console, response, trace=self._shows_trace)
        if response.metadata["ended_by"] in ("refused", *UNANSWERED):  # nothing to remember
            return
        self.questions += 1
        self.history += [
            {"role": "user", "content": line},
            {"role": "assistant", "content": response.content},
        ]
        self._trim()

    def _trim(self) -> None:
        context = self._coordinator.context
        if context.estimate_tokens(self.history) > context.limits.trim_above_tokens:
            found = context.trim(self.history)
            self.history = found.messages
            self._say(f"trimmed: {found.num_dropped} messages dropped; the rest is read again")
            try:
                self._coordinator.read_ahead(self.history)
            except InfraMindError as error:
                self._say(f"error: {error}")

    def _bar(self) -> str:
        context = self._coordinator.context
        return context_bar(
            {
                "context_tokens": context.estimate_tokens(self.history),
                "context_limit": context.limits.max_tokens,
                "context_trimmed": False,
            }
        )

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, highlight=False, markup=False)
