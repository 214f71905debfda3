"""Calibration: how far simulated servers are from measured ones, and cards that bring them near.

- `inframind calibrate`: a request log (`request_log.py`) becomes a server card (`server_card.py`,
  `report.py`), or the log of a pool the cards of all its models (`live_pool.py`).
- `inframind workload fit`: a table of outcomes becomes a workload (`outcomes.py`).
"""
