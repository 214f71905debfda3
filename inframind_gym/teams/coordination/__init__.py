"""Coordination: what a supervisor of five agents does next before a deadline."""
