"""Where code runs: containers, confined processes, and what both ask of the kernel."""
