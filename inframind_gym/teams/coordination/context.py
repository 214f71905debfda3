"""Context of a conversation: size, trimming, and the memory that its keys and values take.

A trim starts above `trim_above_tokens` and cuts to `trim_to_tokens`. System messages and the latest
user message always stay. Of the room that is left, 30 % go to the oldest history and 70 % to the
newest; what the oldest does not use goes to the newest, and the other way round. A call of tools
and its results stay or go together, since models refuse one without the other. Order is kept.

The oldest part keeps what a conversation was opened with, and the prefix that a server has cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from inframind_gym.configs import PositiveInt, StrictModel
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.teams.llm.types import CHARS_PER_TOKEN

MODEL: Final = "qwen3-4b"
KV_BYTES: Final = {"fp16": 2, "bf16": 2, "fp8": 1}  # of one number of the cache
GIB: Final = 2**30
_ROLES: Final = {"human": "user", "ai": "assistant"}  # names of LangChain


class ContextLimits(StrictModel):
    """Limits of a conversation in tokens.

    Attributes:
        max_tokens: Length of the model's context.
        trim_above_tokens: Longer conversations are trimmed.
        trim_to_tokens: Length after it: 85 % of 128,000.
        oldest_share: Part of the kept history that is the oldest.
    """

    max_tokens: PositiveInt = 131_072
    trim_above_tokens: PositiveInt = 120_000
    trim_to_tokens: PositiveInt = 108_800
    oldest_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.3

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.trim_to_tokens <= self.trim_above_tokens <= self.max_tokens:
            raise ValueError(
                "trim_to_tokens, trim_above_tokens and max_tokens must ascend, got "
                f"{self.trim_to_tokens:,}, {self.trim_above_tokens:,} and {self.max_tokens:,}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A conversation after a trim.

    Attributes:
        messages: Those that are kept, in their order.
        num_dropped: Messages that are not.
        tokens_before: Of the whole conversation.
        tokens_after: Of what is kept.
        target_tokens: What was asked for; `tokens_after` exceeds it if the messages that always
            stay do.
    """

    messages: list[Any]
    num_dropped: int
    tokens_before: int
    tokens_after: int
    target_tokens: int

    @property
    def overflow_tokens(self) -> int:
        """Tokens beyond the target."""
        return max(0, self.tokens_after - self.target_tokens)


def kv_bytes_per_token(model: str = MODEL, dtype: str = "fp8") -> int:
    """Return the bytes of keys and values that one token takes.

    Args:
        model: A name of the table of architectures, or a folder with a `config.json`.
        dtype: Type of the cache: "fp8", "fp16" or "bf16".

    Raises:
        ConfigError: The model or the type is not known.
    """
    if dtype not in KV_BYTES:
        raise ConfigError(unknown("type of the KV cache", dtype, KV_BYTES))
    return find_architecture(model).kv_token_bytes * KV_BYTES[dtype] // KV_BYTES["fp16"]


def kv_gib(tokens: int, model: str = MODEL, dtype: str = "fp8") -> float:
    """Return the GiB of keys and values of a context, see `kv_bytes_per_token`."""
    return tokens * kv_bytes_per_token(model, dtype) / GIB


def message_tokens(message: Any) -> int:
    """Return the estimated tokens of a message: four bytes of UTF-8 a token, calls included."""
    size = _size(field_of(message, "content"))
    for call in field_of(message, "tool_calls") or ():
        size += _size(field_of(call, "function") or call)
    return -(-size // CHARS_PER_TOKEN)


class ContextManager:
    """Keeps a conversation within the context of a model.

    Messages are mappings as OpenAI's chat API has them (``role``, ``content``, ``tool_calls``,
    ``tool_call_id``) or messages of LangChain.

    Args:
        limits: Lengths; None: the defaults of `ContextLimits`.
        count: Tokens of one message; `message_tokens` by default.
    """

    def __init__(
        self,
        limits: ContextLimits | None = None,
        count: Callable[[Any], int] = message_tokens,
    ) -> None:
        self.limits = limits or ContextLimits()
        self._count = count

    def estimate_tokens(self, messages: Sequence[Any]) -> int:
        """Return the tokens of a conversation."""
        return sum(map(self._count, messages))

    def trim(self, messages: Sequence[Any], target_tokens: int | None = None) -> Trimmed:
        """Cut a conversation to a length, however long it is.

        Args:
            messages: The conversation.
            target_tokens: Length to reach; None: `trim_to_tokens`. One that the messages that
                always stay exceed leaves nothing but them.
        """
        target = self.limits.trim_to_tokens if target_tokens is None else target_tokens
        tokens = [self._count(message) for message in messages]
        before = sum(tokens)
        if before <= target:
            return Trimmed(list(messages), 0, before, before, target)
        roles = [role_of(message) for message in messages]
        users = [i for i, role in enumerate(roles) if role == "user"]
        kept = {i for i, role in enumerate(roles) if role == "system"} | set(users[-1:])
        groups = [group for group in _groups(messages, roles) if kept.isdisjoint(group)]
        sizes = [sum(tokens[i] for i in group) for group in groups]
        room = target - sum(tokens[i] for i in kept)
        for i in _both_ends(sizes, room, self.limits.oldest_share):
            kept.update(groups[i])
        chosen = sorted(kept)
        after = sum(tokens[i] for i in chosen)
        return Trimmed(
            [messages[i] for i in chosen], len(messages) - len(chosen), before, after, target
        )

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
        found = self.trim(messages) if too_long else Trimmed(messages, 0, total, total, total)
        return {
            "llm_input_messages": found.messages,
            "context_trimmed": found.num_dropped > 0,
            "tokens_trimmed": found.tokens_before - found.tokens_after,
        }

    def post_model_hook(
        self, state: Mapping[str, Any], clock: Callable[[], float] = time.time
    ) -> dict[str, Any]:
        """Return LangGraph's update of a state after a call of the model.

        Args:
            state: ``response``, ``messages``; ``output_mode`` other than "structured" changes
                nothing.
            clock: Seconds since 1970.
        """
        if state.get("output_mode") != "structured":
            return {}
        seen = state.get("llm_input_messages", state.get("messages", ()))
        tokens = self.estimate_tokens(seen)
        return {
            "response": {
                "content": state.get("response"),
                "structured": True,
                "generated_at": clock(),
                "context_optimized": bool(state.get("context_trimmed", False)),
            },
            "metadata": {
                "context_used": tokens,
                "kv_cache_usage_gb": kv_gib(tokens),
                "parallel_execution_active": bool(state.get("parallel_tool_calls", False)),
            },
        }


def role_of(message: Any) -> str:
    """Return "system", "user", "assistant" or "tool"."""
    role = str(field_of(message, "role") or field_of(message, "type") or "user")
    return _ROLES.get(role, role)


def field_of(message: Any, key: str) -> Any:
    """Return a field of a message, a mapping or an object; None where it has none."""
    return message.get(key) if isinstance(message, Mapping) else getattr(message, key, None)


def _size(content: Any) -> int:
    """Bytes of a text, or of the texts of blocks; another block counts as it is written."""
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode(errors="surrogatepass"))
    if isinstance(content, Mapping):
        text = content.get("text")
        return _size(text) if isinstance(text, str) else _size(str(content))
    if isinstance(content, Sequence):
        return sum(_size(block) for block in content)
    return _size(str(content))


def _groups(messages: Sequence[Any], roles: Sequence[str]) -> list[list[int]]:
    """Messages that stay or go together; calls without results and results without calls go."""
    groups: list[list[int]] = []
    waiting: dict[str, list[int]] = {}  # identifiers of calls without results -> their group
    for i, (message, role) in enumerate(zip(messages, roles, strict=True)):
        if role == "tool":
            group = waiting.pop(str(field_of(message, "tool_call_id")), None)
            if group is not None:
                group.append(i)
            continue
        groups.append([i])
        if role == "assistant":
            for call in field_of(message, "tool_calls") or ():
                waiting[str(field_of(call, "id"))] = groups[-1]
    broken = {group[0] for group in waiting.values()}
    return [group for group in groups if group[0] not in broken]


def _both_ends(sizes: Sequence[int], room: int, oldest_share: float) -> set[int]:
    """Indices of the groups that are kept; one that is larger than all the room is passed over."""
    fitting = [i for i, size in enumerate(sizes) if size <= room]
    kept: set[int] = set()

    def take(order: list[int], most: int) -> int:
        used = 0
        for i in order:
            if i in kept:
                continue
            if used + sizes[i] > most:
                break
            kept.add(i)
            used += sizes[i]
        return used

    left = room - take(fitting, int(room * oldest_share))
    left -= take(fitting[::-1], left)
    take(fitting, left)
    return kept
