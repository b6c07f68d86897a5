"""Running a team on many tasks, and what comes of them."""
