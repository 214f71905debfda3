"""Context of a conversation: size, trimming, and the memory that its keys and values take.

A trim starts above `trim_above_tokens` and cuts to `trim_to_tokens`. System messages and the latest
user message always stay. Of the room that is left, 30 % go to the oldest history and 70 % to the
newest (`rules.kept_exchanges`). A call of tools and its results stay or go together, since models
refuse one without the other. Order is kept.

The oldest part keeps what a conversation was opened with, and the prefix that a server has cached.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.teams.coordination.rules import kept_exchanges
from inframind_gym.teams.coordination.settings import ContextLimits
from inframind_gym.teams.llm import CHARS_PER_TOKEN

_ROLES: Final = {"human": "user", "ai": "assistant"}  # names of LangChain


class Trimmed(NamedTuple):
    """A conversation after a trim."""

    messages: list[Any]  # those that are kept, in their order
    tokens_before: int
    tokens_after: int  # more than the target where the messages that always stay are


class ContextManager:
    """Keeps a conversation within the context of a model.

    Messages are mappings as OpenAI's chat API has them (``role``, ``content``, ``tool_calls``,
    ``tool_call_id``) or messages of LangChain.

    Args:
        limits: Lengths; None: the defaults of `ContextLimits`.
    """

    def __init__(self, limits: ContextLimits | None = None) -> None:
        self.limits = limits or ContextLimits()

    def estimate_tokens(self, messages: Sequence[Any]) -> int:
        """Return the tokens of a conversation."""
        return sum(map(message_tokens, messages))

    def trim(self, messages: Sequence[Any], target_tokens: int | None = None) -> Trimmed:
        """Cut a conversation to a length, however long it is.

        Args:
            messages: The conversation.
            target_tokens: Length to reach; None: `trim_to_tokens`. One that the messages that
                always stay exceed leaves nothing but them.
        """
        target = self.limits.trim_to_tokens if target_tokens is None else target_tokens
        tokens = [message_tokens(message) for message in messages]
        if sum(tokens) <= target:
            return Trimmed(list(messages), sum(tokens), sum(tokens))
        roles = [_role_of(message) for message in messages]
        users = [i for i, role in enumerate(roles) if role == "user"]
        stays = {i for i, role in enumerate(roles) if role == "system"} | set(users[-1:])
        groups = [group for group in _groups(messages, roles) if stays.isdisjoint(group)]
        sizes = np.array([[sum(tokens[i] for i in group) for group in groups]], np.int64)
        room = np.array([target - sum(tokens[i] for i in stays)])
        for i in np.flatnonzero(kept_exchanges(sizes, room, self.limits.oldest_share)[0]):
            stays.update(groups[i])
        kept = sorted(stays)
        return Trimmed([messages[i] for i in kept], sum(tokens), sum(tokens[i] for i in kept))

    def pre_model_hook(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return LangGraph's update of a state before a call of the model, for graphs of yours.

        The reducer of `messages` merges what a node returns into what is there, so that a shorter
        list changes nothing. The model's input goes by ``llm_input_messages`` instead.

        Args:
            state: Has ``messages``.

        Returns:
            ``llm_input_messages``, ``context_trimmed`` and ``tokens_trimmed``.
        """
        messages = list(state.get("messages", ()))
        total = self.estimate_tokens(messages)
        too_long = total > self.limits.trim_above_tokens
        trimmed = self.trim(messages) if too_long else Trimmed(messages, total, total)
        return {
            "llm_input_messages": trimmed.messages,
            "context_trimmed": len(trimmed.messages) < len(messages),
            "tokens_trimmed": trimmed.tokens_before - trimmed.tokens_after,
        }

    def post_model_hook(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return LangGraph's update of a state after a call of the model.

        Args:
            state: ``response``, ``messages``; ``output_mode`` other than "structured" changes
                nothing.
        """
        if state.get("output_mode") != "structured":
            return {}
        tokens = self.estimate_tokens(state.get("llm_input_messages", state.get("messages", ())))
        return {
            "response": {
                "content": state.get("response"),
                "structured": True,
                "generated_at": time.time(),
                "context_optimized": bool(state.get("context_trimmed", False)),
            },
            "metadata": {
                "context_used": tokens,
                "kv_cache_usage_gb": kv_gib(tokens),
                "parallel_execution_active": bool(state.get("parallel_tool_calls", False)),
            },
        }


def kv_gib(tokens: int, bytes_per_number: int = 1) -> float:
    """Return the GiB of Qwen3-4B's keys and values; a number takes one byte in FP8, else two."""
    return tokens * find_architecture("qwen3-4b").kv_token_bytes * bytes_per_number / 2 / 2**30


def message_tokens(message: Any) -> int:
    """Return the estimated tokens of a message: four bytes of UTF-8 a token, calls included."""
    calls = _field_of(message, "tool_calls") or ()
    parts = [_field_of(message, "content"), *(_field_of(c, "function") or c for c in calls)]
    size = sum(len(_text(part).encode(errors="surrogatepass")) for part in parts)
    return -(-size // CHARS_PER_TOKEN)


def messages_of(context: Any) -> list[dict[str, Any]]:
    """Return earlier messages as mappings with role and content, and their calls of tools.

    Args:
        context: A list of messages, or a chat memory with a method `get`; None: there are none.

    Raises:
        ConfigError: They are no list, or one of them is no message.
    """
    is_memory = hasattr(context, "get") and not isinstance(context, Mapping)
    listed = context.get() if is_memory else [] if context is None else context
    if isinstance(listed, Mapping | str) or not isinstance(listed, Sequence):
        raise ConfigError("context: give a list of messages, or a chat memory with a method `get`.")
    messages = []
    for message in listed:
        content = _field_of(message, "content")
        names = ("tool_calls", "tool_call_id")
        tools = {name: value for name in names if (value := _field_of(message, name))}
        if content is None and not tools:
            raise ConfigError(f"context: {message!r:.80} is no message with role and content.")
        messages.append({"role": _role_of(message), "content": _text(content), **tools})
    return messages


def _role_of(message: Any) -> str:
    """Return "system", "user", "assistant" or "tool"."""
    role = str(_field_of(message, "role") or _field_of(message, "type") or "user")
    return _ROLES.get(role, role)


def _field_of(message: Any, key: str) -> Any:
    """Return a field of a message, a mapping or an object; None where it has none."""
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def _text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of blocks."""
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    return "" if content is None else str(content)


def _groups(messages: Sequence[Any], roles: Sequence[str]) -> list[list[int]]:
    """Return messages that stay or go together, without calls or results that miss the other."""
    groups: list[list[int]] = []
    waiting: dict[str, list[int]] = {}  # identifiers of calls without results -> their group
    for i, (message, role) in enumerate(zip(messages, roles, strict=True)):
        if role == "tool":
            group = waiting.pop(str(_field_of(message, "tool_call_id")), None)
            if group is not None:
                group.append(i)
            continue
        groups.append([i])
        if role == "assistant":
            for call in _field_of(message, "tool_calls") or ():
                waiting[str(_field_of(call, "id"))] = groups[-1]
    broken = {group[0] for group in waiting.values()}
    return [group for group in groups if group[0] not in broken]
