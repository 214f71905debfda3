"""vLLM answers as it was recorded to: what simulated servers are compared with."""

from __future__ import annotations

import asyncio
import json

import pytest

from inframind_gym.live.settings import server_url
from tests.live.simulated.questions import MODEL, RECORDED, answers, form
from tests.live.vllm_live.rig import LiveRig

pytestmark = pytest.mark.live


def test_vllm_answers_as_recorded(rig: LiveRig) -> None:
    (model,) = (each for each in rig.config.models if each.name == MODEL)
    found = asyncio.run(answers(server_url(model)))
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert {name: form(answer) for name, answer in found.items()} == {
        name: form(answer) for name, answer in recorded.items()
    }
    assert set(recorded["metrics"]["says"]) <= set(found["metrics"]["says"])
