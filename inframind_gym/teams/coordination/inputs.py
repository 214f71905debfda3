"""What a query is given: text, earlier messages, settings; and the team's constants after them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination.context import ContextLimits, field_of, role_of
from inframind_gym.teams.coordination.contracts import Plan, Route
from inframind_gym.teams.coordination.options import MOST_QUERY_CHARS, QuerySettings
from inframind_gym.teams.coordination.screen import Where, screen
from inframind_gym.teams.coordination.settings import CoordinationSettings

_LONE: Final = re.compile("[\ud800-\udfff]")  # bytes of a command line that are not UTF-8
_OF_TOOLS: Final = ("tool_calls", "tool_call_id")
WITHHELD: Final = "[withheld]"  # in place of a turn that looks like a prompt injection


def within_context(settings: CoordinationSettings, length: int) -> CoordinationSettings:
    """Return the team's constants for another length of the context."""
    limits = settings.context
    share = min(length / 128_000, 1.0)
    context = ContextLimits(
        max_tokens=min(limits.max_tokens, length) if length < 128_000 else limits.max_tokens,
        trim_above_tokens=int(limits.trim_above_tokens * share),
        trim_to_tokens=int(limits.trim_to_tokens * share),
        oldest_share=limits.oldest_share,
    )
    return settings.model_copy(update={"context": context})


def adapted(
    settings: CoordinationSettings, options: QuerySettings, *, slow: bool
) -> CoordinationSettings:
    """Return the team's constants with the limits of a query.

    A later deadline is for a slower server: the time that is kept for the fallback grows with it,
    unless the rates are those of the simulation.
    """
    limits, server = settings.limits, settings.server
    times = (options.deadline_s or limits.hard_s) / limits.hard_s
    seconds = ("simple_s", "target_s", "hard_s", "call_timeout_s")
    slower = times if slow else 1.0
    return settings.model_copy(
        update={
            "limits": limits.model_copy(
                update={
                    **{name: getattr(limits, name) * times for name in seconds},
                    "max_iterations": min(limits.max_iterations, options.max_iterations),
                    "max_retries": min(limits.max_retries, options.retry.max_retries),
                    "backoff_factor": options.retry.backoff_factor,
                    "parallel_calls": min(limits.parallel_calls, options.max_parallel_calls),
                }
            ),
            "server": server.model_copy(
                update={
                    "decode_tokens_per_s": server.decode_tokens_per_s / slower,
                    "prefill_tokens_per_s": server.prefill_tokens_per_s / slower,
                }
            ),
        }
    )


def checked_query(query: str) -> str:
    """Return a query without blanks around it.

    Raises:
        ConfigError: It is empty, too long or no text.
    """
    if not isinstance(query, str) or not query.strip():
        raise ConfigError("the query is empty.")
    if not query.isascii() and _LONE.search(query):
        raise ConfigError("the query is no text: it holds bytes that are not UTF-8.")
    if len(query) > MOST_QUERY_CHARS:
        raise ConfigError(f"the query has {len(query):,} characters, {MOST_QUERY_CHARS:,} at most.")
    return query.strip()


def messages_of(context: Any) -> list[dict[str, Any]]:
    """Return earlier messages as mappings with role and content, and their calls of tools.

    Raises:
        ConfigError: They are no list, or one of them is no message.
    """
    if context is None:
        return []
    listed = (
        context.get() if hasattr(context, "get") and not isinstance(context, Mapping) else context
    )
    if isinstance(listed, Mapping | str) or not isinstance(listed, Sequence):
        raise ConfigError("context: give a list of messages, or a chat memory with a method `get`.")
    found = []
    for message in listed:
        content, *values = (field_of(message, key) for key in ("content", *_OF_TOOLS))
        tools = {key: value for key, value in zip(_OF_TOOLS, values, strict=True) if value}
        if content is None and not tools:
            raise ConfigError(f"context: {message!r:.80} is no message with role and content.")
        found.append({"role": role_of(message), "content": _text(content), **tools})
    return found


def _text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of blocks."""
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    return "" if content is None else str(content)


def screened(
    history: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], tuple[tuple[str, str], ...]]:
    """Return earlier messages with `WITHHELD` for each that looks like a prompt injection.

    Turns of the user are screened as queries, those of models and tools as documents, since they
    may pass on what a document said. System messages are instructions, and are left alone.

    Returns:
        The messages, and name and reason of each that is withheld.
    """
    kept: list[Mapping[str, Any]] = []
    withheld = []
    for number, message in enumerate(history, 1):
        role, content = message["role"], message["content"]
        where: Where = "query" if role == "user" else "document"
        found = None if role == "system" else screen(content, where)
        if found is not None and found.is_attack:
            withheld.append((f"turn {number}", found.reason))
            content = WITHHELD
        kept.append({**message, "content": content})
    return kept, tuple(withheld)


def checked_reply(node: str, value: Any, query: str) -> str | Route | Plan:
    """Return a person's value at a node: answer, route or plan.

    Args:
        node: Where the person was asked.
        value: Answer (str), `Route` or `Plan`, or a mapping of their fields.
        query: Of the user.

    Raises:
        ConfigError: The value is none of the node.
    """
    source = f"reply at {node}"
    if node in ("validator", "human"):
        if not isinstance(value, str):
            raise ConfigError(f"{source}: give a text, not {value!r:.80}.")
        return value
    if node == "router":
        return validate(value, Route, source=source)
    if isinstance(value, Mapping):
        value = {"original_query": query, **value}
    return validate(value, Plan, source=source)


def settings_of(settings: QuerySettings | Mapping[str, Any] | None) -> QuerySettings:
    """Return checked settings.

    Raises:
        ConfigError: One is unknown or has a wrong value.
    """
    if isinstance(settings, QuerySettings):
        return settings
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"settings: give QuerySettings or its fields, not {settings!r:.80}.")
    return validate(dict(settings or {}), QuerySettings, source="settings")
