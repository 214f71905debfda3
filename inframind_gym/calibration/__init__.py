"""Calibration: server cards fitted to request logs, and measured runs replayed."""
