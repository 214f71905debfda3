"""Policies of `InfraMind-TokenBudget-v0`, and of the application with the same team."""
