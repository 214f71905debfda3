"""The benchmark: suites, runner, result store, intervals, leaderboard and comparison."""
