"""Placement: which model lives on which GPU."""
