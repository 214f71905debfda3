"""Tracks, the standard benchmark in steady load: files, cells, metrics, bounds and scores."""
