"""Constants of pools and workloads, fitted to what was measured; the fits on file."""
