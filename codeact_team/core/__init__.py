"""Effects, events, results, and what else every part speaks."""
