"""The family of `InfraMind-Stream-v0`: how sweeps are run, written down and shown."""
