"""The log of what happened: runs and their events in one SQLite file."""
