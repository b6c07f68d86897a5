"""The way out of a sandbox: which hosts code may reach, by which requests, with keys that it never has."""
