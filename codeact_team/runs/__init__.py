"""One run of a team: open, work, chat, resume, replay, result."""
