"""Code in a process of this machine that the kernel confines."""
