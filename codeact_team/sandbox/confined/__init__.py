"""Code in a process of this machine that the kernel confines. The only importer of sandlock."""
