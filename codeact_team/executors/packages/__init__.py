"""Python packages for code in a sandbox, which has no network: resolved and unpacked by the host, mounted read-only."""
