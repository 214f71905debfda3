"""Placement policies: the protocol, the registry and the built-in policies."""
