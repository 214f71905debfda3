"""Policies of `InfraMind-Assignment-v0`."""
