"""One run of a team: journal, result, resume, replay, exports."""
