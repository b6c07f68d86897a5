"""The sandboxes in the shape that other agent harnesses expect. Each module needs the extra of its name."""
