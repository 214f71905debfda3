"""Data of calls to models: requests, answers, and the errors of calls that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from inframind_gym.errors import InfraMindError

CHARS_PER_TOKEN = 4  # rule of thumb for English text, where a server reports no usage


@dataclass(frozen=True, slots=True)
class LLMRequest:
    """One call as a provider gets it.

    Attributes:
        system: System prompt.
        user: User message.
        max_tokens: Most tokens of the answer.
        response_format: JSON schema of the object that is wanted; None: free text.
        context: What a simulated provider draws by (agent, task, step, …); others ignore it.
    """

    system: str
    user: str
    max_tokens: int
    response_format: Mapping[str, Any] | None
    context: Mapping[str, Any]

    @property
    def prompt_tokens_estimate(self) -> int:
        """Tokens of the prompt by its length, before a server has counted them."""
        return estimate_tokens(self.system) + estimate_tokens(self.user)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer as a provider returns it.

    Attributes:
        content: Text.
        input_tokens: Tokens of the prompt; None: the server reported none.
        output_tokens: Tokens of the answer; None: the server reported none.
        finish_reason: "stop", "length", …
        latency_s: Virtual time that the call took; None: the service measures real time.
    """

    content: str
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str = "stop"
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One answer with what it cost.

    Attributes:
        content: Text.
        provider: Name of the provider in its service.
        model: Name of the model.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        total_tokens: Their sum.
        latency_s: Duration of the attempt that succeeded; virtual for simulated providers.
        cost_usd: Price by the table of prices.
        finish_reason: "stop", "length", …
    """

    content: str
    provider: str
    model: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    latency_s: float
    cost_usd: float
    finish_reason: str


class Provider(Protocol):
    """A way to one model.

    Attributes:
        model: Name of the model.
        is_simulated: Answers are drawn, not generated; everything made of them is marked so.
    """

    model: str
    is_simulated: bool

    async def complete(self, request: LLMRequest) -> Completion:
        """Send one request, once.

        Raises:
            AttemptError: No usable answer came.
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


Spent = Literal["nothing", "unknown"]


class AttemptError(Exception):
    """One attempt of a call brought no usable answer.

    Attributes:
        outcome: "http_429", "http_500", "timeout", "connection", "malformed", …
        is_retryable: The same request may succeed later.
        spent: "nothing" where the server refused the request; "unknown" where it may have
            generated tokens that never arrived.
        wait_s: Time that the server asks to wait; None: it asks for none.
    """

    def __init__(
        self,
        outcome: str,
        message: str,
        *,
        is_retryable: bool,
        spent: Spent,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.is_retryable = is_retryable
        self.spent: Spent = spent
        self.wait_s = wait_s


class LLMError(InfraMindError):
    """A call failed for good.

    Attributes:
        outcome: Outcome of the last attempt, see `AttemptError`.
        attempts: Number of attempts.
    """

    def __init__(self, message: str, outcome: str, attempts: int) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.attempts = attempts


class BudgetError(InfraMindError):
    """A guard refused a call; nothing was sent."""


def estimate_tokens(text: str) -> int:
    """Return the tokens of a text by its length, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)
