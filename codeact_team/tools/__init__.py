"""Tools of the host that code in a sandbox may call, and who approves that."""
