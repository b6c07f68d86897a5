"""AutoGen code executors that run code in the sandboxes."""
