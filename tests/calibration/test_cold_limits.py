"""A card predicts its server under another `max_num_seqs`, as the step-by-step reference serves."""

from __future__ import annotations

import numpy as np
import pytest

from inframind_gym.calibration.request_log import RequestLog, read_log
from inframind_gym.calibration.server_card import Calibration, Limits, calibrate
from inframind_gym.simulator.server.pool import ServerCard
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record
from tests.calibration.synthetic import STEP, card, rows, write
from tests.simulator.reference.kernel import ReferenceKernel, RefRequest, RefServer

ROOFLINE = STEP.model_copy(update={"roofline_power": 2.0})  # none that the calibration tries


def served(server: ServerCard, log: RequestLog) -> list[RefRequest]:
    """The requests of the log, served one step at a time."""
    limits = server.model_dump(include=set(RefServer.__dataclass_fields__))
    reference = RefServer(**limits, **server.step.model_dump())
    arrivals = zip(log.arrival_s, log.prompt_tokens, log.output_tokens, strict=True)
    return ReferenceKernel([reference]).run(
        RefRequest(i, 0, float(at_s), 0.0, int(prompt), int(output))
        for i, (at_s, prompt, output) in enumerate(arrivals)
    )


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    log = write(tmp_path_factory.mktemp("log"), rows(card(step=ROOFLINE)))
    return calibrate(read_log(log), Limits(16, 1024))


@pytest.mark.parametrize("slots", [4, 48])
def test_another_number_of_slots(calibration: Calibration, slots: int) -> None:
    log, found = calibration.log, calibration.card.step
    cold = card(step=ROOFLINE, max_num_seqs=slots)
    truth = served(cold, log)
    said = replay_requests(
        card_record(cold.model_copy(update={"step": found})),
        np.zeros(len(log)),
        log.arrival_s,
        log.prompt_tokens,
        log.output_tokens,
    )
    measured_s = np.array([r.finish_s - r.submit_s for r in truth])
    predicted_s = said["finish_s"] - log.arrival_s
    assert predicted_s.mean() == pytest.approx(measured_s.mean(), rel=0.03)
    for level in (50, 95):
        measured, predicted = (np.percentile(of, level) for of in (measured_s, predicted_s))
        assert predicted == pytest.approx(measured, rel=0.03)
