"""A recorded run for other eyes: a page for a browser, a log for Inspect."""
