"""Settings of a query, and the variables of an `.env` file that set some of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from inframind_gym.configs import Positive, StrictModel, validate, within
from inframind_gym.errors import ConfigError
from inframind_gym.files import read_text

MODEL: Final = "Qwen/Qwen3-4B-Instruct-2507-FP8"
MOST_QUERY_CHARS: Final = 4096
ENV_FILE: Final = ".env"
_MOST_ENV_BYTES: Final = 2**20
_YES_NO: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Retry(StrictModel):
    """Repeated attempts of a call of a model, all of them inside the deadline.

    Attributes:
        max_retries: After the first attempt.
        backoff_factor: Each wait is so many times the one before.
        timeout_seconds: Limit of one attempt; what the deadline leaves limits it further.
    """

    max_retries: Annotated[int, within(0, 10)] = 3
    backoff_factor: Annotated[float, within(1.0, 10.0)] = 1.5
    timeout_seconds: Positive = 30.0


class QuerySettings(StrictModel):
    """Settings of one query, by the names of the supervisor's configuration.

    Attributes:
        policy: Who decides: a coordination policy by name or "module:Class".
        enable_multi_agent: False answers every query by basic retrieval.
        fallback_to_basic_rag: False lets a query fail where basic retrieval would answer it.
        parallel_tool_calls: False carries out retrievals of one decision one after the other.
        max_parallel_calls: Retrievals of one decision.
        output_mode: "structured" adds the structured answer to the metadata, "full_history" the
            messages of the coordination, "last_message" nothing.
        create_forward_message_tool: Give an agent's answer to the user as it is; otherwise the
            supervisor writes it once more, which takes a call.
        add_handoff_back_messages: Keep a message for each return to the supervisor.
        interrupt_before: Nodes before which a person is asked.
        interrupt_after: Nodes after which a person is asked.
        max_iterations: Decisions of the supervisor.
        agent_decision_timeout_ms: Limit of the time that a decision takes besides calls of models;
            exceeding it is an event.
        deadline_s: Latest answer; the other deadlines scale with it. None: the team's.
        rewrite: Who rewrites queries for retrieval: rules on the words, or the model.
        retry: Of calls of the model.
    """

    policy: str = "seed_supervisor"
    enable_multi_agent: bool = True
    fallback_to_basic_rag: bool = True
    parallel_tool_calls: bool = True
    max_parallel_calls: Annotated[int, within(1, 3)] = 3
    output_mode: Literal["structured", "full_history", "last_message"] = "structured"
    create_forward_message_tool: bool = True
    add_handoff_back_messages: bool = True
    interrupt_before: tuple[Literal["human", "validator"], ...] = ()
    interrupt_after: tuple[Literal["router", "planner"], ...] = ()
    max_iterations: Annotated[int, within(1, 10)] = 10
    agent_decision_timeout_ms: Positive = 200.0
    deadline_s: Positive | None = None
    rewrite: Literal["lexical", "model"] = "lexical"
    retry: Retry = Field(default_factory=Retry)


class Environment(StrictModel):
    """Variables of an `.env` file; `serving.VllmServer.of` takes those of vLLM."""

    ENABLE_MULTI_AGENT: bool = True
    AGENT_DECISION_TIMEOUT: Positive = 200.0  # ms
    FALLBACK_TO_BASIC_RAG: bool = True
    MODEL_PATH: str = MODEL
    MAX_CONTEXT_LENGTH: Annotated[int, within(1024, 131_072)] = 128_000
    VLLM_GPU_MEMORY_UTILIZATION: Annotated[float, within(0.1, 1.0)] = 0.95
    VLLM_MAX_MODEL_LEN: Annotated[int, within(1024, 131_072)] = 131_072
    VLLM_QUANTIZATION: Literal["fp8"] = "fp8"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `QuerySettings` that were set."""
        names = {
            "ENABLE_MULTI_AGENT": "enable_multi_agent",
            "AGENT_DECISION_TIMEOUT": "agent_decision_timeout_ms",
            "FALLBACK_TO_BASIC_RAG": "fallback_to_basic_rag",
        }
        given = self.model_fields_set
        return {name: getattr(self, key) for key, name in names.items() if key in given}


def read_environment(
    environ: Mapping[str, str], env_file: str | Path | None = ENV_FILE
) -> Environment:
    """Read the variables of the team; those of the process win over those of the file.

    Args:
        environ: `os.environ`.
        env_file: Lines of ``NAME=VALUE``; other names are left alone. The default may be missing.

    Raises:
        ConfigError: A value is wrong, or the file cannot be read.
    """
    names = Environment.model_fields
    found: dict[str, str] = {}
    if env_file is not None and (str(env_file) != ENV_FILE or Path(env_file).is_file()):
        found = _read_file(Path(env_file), names)
    given = {**found, **{name: environ[name] for name in names if environ.get(name)}}
    taken = {name: _value(name, text) for name, text in given.items()}
    return validate(taken, Environment, source="environment")


def _value(name: str, text: str) -> Any:
    """Return a text as what its variable holds: yes or no, a number, a text."""
    default = Environment.model_fields[name].default
    if isinstance(default, bool):
        if text.strip().lower() not in _YES_NO:
            raise ConfigError(f"{name}: {text!r:.40} is neither true nor false.")
        return _YES_NO[text.strip().lower()]
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise ConfigError(f"{name}: {text!r:.40} is not a number like {default}.") from None
    return text


def _read_file(path: Path, names: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for line in read_text(path, _MOST_ENV_BYTES).splitlines():
        name, is_pair, value = line.strip().removeprefix("export ").partition("=")
        if is_pair and name.strip() in names:
            value = value.strip()
            quote = value[:1] if value[:1] in ("'", '"') else ""
            end = value.find(quote, 1) if quote else value.find(" #")
            found[name.strip()] = value[len(quote) : end if end > 0 else None].strip()
    return found
