"""Measurements of the gateway: `python -m benchmarks.gateway`."""
