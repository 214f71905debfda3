"""Fits of the shipped constants of pools and workloads, and their results on file."""
