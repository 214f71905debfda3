"""The results page: ``python -m benchmarks results`` trains, runs and writes `docs/results.md`."""
