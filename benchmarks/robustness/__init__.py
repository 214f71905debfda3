"""What policies are worth where the world is not as they were fitted to it.

`circumstances.yaml` says what differs, `circumstances.py` makes a suite of each, `produce.py` plays
them, `page.py` writes docs/robustness.md from their results. The command is
``python -m benchmarks robustness``.
"""
