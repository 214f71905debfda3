"""Ways to models: OpenAI-compatible servers, Anthropic's API, and answers that are drawn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.teams.llm.types import AttemptError, Completion, LLMRequest, Provider, Spent

SIMULATED: Final = "simulated"
DEFAULT_MODELS: Final = {"openai": "gpt-4o-mini", "anthropic": "claude-3-5-haiku-latest"}
_OPENAI_URL: Final = "https://api.openai.com/v1"
_NEVER_AGAIN: Final = ("insufficient_quota", "billing_hard_limit_reached")  # come as 429
_EXTRA: Final = "teams"


class Simulated:
    """Answers that a function draws from the request's context, in virtual time.

    Args:
        model: Name of the model that is imitated.
        answer: Returns the completion of a request, `latency_s` included.
    """

    is_simulated = True

    def __init__(self, model: str, answer: Callable[[LLMRequest], Completion]) -> None:
        self.model = model
        self._answer = answer

    async def complete(self, request: LLMRequest) -> Completion:
        """See `Provider`."""
        return self._answer(request)

    async def aclose(self) -> None:
        """See `Provider`."""


class OpenAICompatible:
    """A server that speaks OpenAI's chat completions: the vendor's, vLLM, llama.cpp, a gateway.

    Args:
        model: Name of the model on the server.
        url: Base URL, e.g. "http://127.0.0.1:8000/v1"; None: the vendor's.
        temperature: Sampling temperature; None: the server's default.

    Raises:
        ConfigError: The extra `teams` or the vendor's key is missing.
    """

    is_simulated = False

    def __init__(
        self, model: str, url: str | None = None, temperature: float | None = None
    ) -> None:
        sdk = require("openai", "an OpenAI-compatible provider", _EXTRA)
        # The vendor's key goes to the vendor alone; own servers have a password of their own.
        self._key = _key("OPENAI_API_KEY") if url is None else os.environ.get("VLLM_API_KEY", "")
        self.model = model
        self._sampling = {} if temperature is None else {"temperature": temperature}
        # Newer models of the vendor refuse the old name, other servers may not know the new one.
        self._limit = "max_completion_tokens" if url is None else "max_tokens"
        self._sdk = sdk
        self._client = sdk.AsyncOpenAI(
            api_key=self._key or "none", base_url=url or _OPENAI_URL, max_retries=0, timeout=None
        )

    async def complete(self, request: LLMRequest) -> Completion:
        """See `Provider`."""
        wanted: dict[str, Any] = {self._limit: request.max_tokens, **self._sampling}
        if request.response_format is not None:
            schema = {"name": "answer", "schema": dict(request.response_format)}
            wanted["response_format"] = {"type": "json_schema", "json_schema": schema}
        messages = [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.user},
        ]
        create = self._client.chat.completions.create
        reply = await _sent(
            self._sdk, self._key, create(model=self.model, messages=messages, **wanted)
        )
        try:
            choice = reply.choices[0]
            usage = reply.usage
            return Completion(
                choice.message.content or "",
                None if usage is None else int(usage.prompt_tokens),
                None if usage is None else int(usage.completion_tokens),
                str(choice.finish_reason or "stop"),
            )
        except (AttributeError, IndexError, TypeError, ValueError):
            raise _malformed("the answer is no chat completion") from None

    async def aclose(self) -> None:
        """See `Provider`."""
        await self._client.close()


class Anthropic:
    """Anthropic's messages API.

    Args:
        model: Name of the model.
        url: Base URL; None: the vendor's.
        temperature: Sampling temperature; None: not sent, as newer models refuse it.

    Raises:
        ConfigError: The extra `teams` or the key is missing.
    """

    is_simulated = False

    def __init__(
        self, model: str, url: str | None = None, temperature: float | None = None
    ) -> None:
        sdk = require("anthropic", "the provider 'anthropic'", _EXTRA)
        self._key = _key("ANTHROPIC_API_KEY")
        self.model = model
        self._sampling = {} if temperature is None else {"temperature": temperature}
        self._sdk = sdk
        self._client = sdk.AsyncAnthropic(
            api_key=self._key,
            base_url=url or "https://api.anthropic.com",
            max_retries=0,
            timeout=None,
        )

    async def complete(self, request: LLMRequest) -> Completion:
        """See `Provider`. A schema goes into the prompt: older models know no other way."""
        system = request.system
        if request.response_format is not None:
            schema = json.dumps(dict(request.response_format))
            system += f"\nAnswer with one JSON object of this schema, and nothing else: {schema}"
        create = self._client.messages.create
        reply = await _sent(
            self._sdk,
            self._key,
            create(
                model=self.model,
                system=system,
                messages=[{"role": "user", "content": request.user}],
                max_tokens=request.max_tokens,
                **self._sampling,
            ),
        )
        try:
            text = "".join(block.text for block in reply.content if block.type == "text")
            reason = "length" if reply.stop_reason == "max_tokens" else "stop"
            usage = reply.usage
            return Completion(text, int(usage.input_tokens), int(usage.output_tokens), reason)
        except (AttributeError, TypeError, ValueError):
            raise _malformed("the answer is no message") from None

    async def aclose(self) -> None:
        """See `Provider`."""
        await self._client.close()


def open_provider(
    name: str, model: str | None = None, temperature: float | None = None
) -> Provider:
    """Open a real provider by the name that command lines take.

    Args:
        name: "openai", "anthropic" or a base URL.
        model: Name of the model; None: the vendor's default of `DEFAULT_MODELS`.
        temperature: Sampling temperature; None: not sent.

    Raises:
        ConfigError: The name is unknown, a URL comes without a model, or a key is missing.
    """
    if name.startswith(("http://", "https://")):
        if "@" in urlsplit(name).netloc or urlsplit(name).query:
            raise ConfigError(
                "--provider: the URL holds a password or a query, which the run log would show. "
                "Set VLLM_API_KEY instead."
            )
        if model is None:
            raise ConfigError(f"--provider {name} needs --model: the model's name on that server.")
        return OpenAICompatible(model, name.rstrip("/"), temperature)
    if name == "openai":
        return OpenAICompatible(model or DEFAULT_MODELS[name], None, temperature)
    if name == "anthropic":
        return Anthropic(model or DEFAULT_MODELS[name], None, temperature)
    message = unknown("provider", name, (SIMULATED, *DEFAULT_MODELS))
    raise ConfigError(f"{message} A base URL such as http://127.0.0.1:8000/v1 is taken as well.")


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"{variable} is not set. Set it to your key, or use `--provider {SIMULATED}`, which "
            "needs none."
        )
    return key


async def _sent(sdk: Any, key: str, wanted: Any) -> Any:
    """Wait for the SDK's answer; both SDKs have the same errors under the same names.

    Raises:
        AttemptError: Whatever went wrong.
    """
    try:
        return await wanted
    except sdk.APIStatusError as error:
        raise _refused(error, key) from None
    except sdk.APITimeoutError as error:
        raise AttemptError(
            "timeout", str(error), is_retryable=True, spent=_reached(error)
        ) from None
    except sdk.APIConnectionError as error:
        why = f"{error} {error.__cause__ or ''}".replace(key or "\0", "[key]").strip()
        raise AttemptError("connection", why, is_retryable=True, spent=_reached(error)) from None
    except (sdk.APIError, ValueError) as error:  # a body that is no JSON, or of another form
        raise _malformed(str(error).replace(key or "\0", "[key]")) from None


def _reached(error: BaseException) -> Spent:
    """Return what a broken attempt may have spent: nothing where no connection was made."""
    cause = type(error.__cause__).__name__
    return "nothing" if cause in ("ConnectError", "ConnectTimeout", "PoolTimeout") else "unknown"


def _refused(error: Any, key: str) -> AttemptError:
    """Return the failure of an answer that is an error by its status."""
    status = int(error.status_code)
    body = error.body if isinstance(error.body, Mapping) else {}
    is_final = str(body.get("code") or body.get("type")) in _NEVER_AGAIN
    hint = " Is the model's name right? Vendors retire models." if status == 404 else ""
    try:
        wait_s = float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        wait_s = None
    return AttemptError(
        f"http_{status}",
        str(error.message).replace(key or "\0", "[key]") + hint,
        is_retryable=(status == 429 or status >= 500) and not is_final,
        spent="nothing",
        wait_s=wait_s,
    )


def _malformed(message: str) -> AttemptError:
    """Return the failure of an answer that cannot be read; it was paid, so it is not sent again."""
    return AttemptError("malformed", message, is_retryable=False, spent="unknown")
