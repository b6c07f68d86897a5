"""A run as a page for a browser."""
