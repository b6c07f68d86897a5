"""How code runs: AutoGen code executors over the sandboxes."""
