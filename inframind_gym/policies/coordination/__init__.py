"""Policies of `InfraMind-Coordination-v0`."""
