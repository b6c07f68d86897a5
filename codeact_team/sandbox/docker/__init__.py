"""Code in a hardened container. The only importer of a Docker client."""
