"""Calibration: how far simulated servers are from measured ones, and cards that bring them near.

Three sources of measurements, one fitter (`fit.py`) and one report (`report.py`), as the commands
of `commands.py`:

- `inframind calibrate`: a request log (`request_log.py`) becomes a server card (`server_card.py`).
- `inframind replay`: published runs of routed workflows (`measured_runs.py`) are simulated
  (`replay.py`, `replay_choices.py`).
- `inframind sim2real`: episodes are played on a live pool (`live_episodes.py`), cards are fitted to
  some (`live_pool.py`), and the others, at loads that the fit has not seen, are predicted.
"""
