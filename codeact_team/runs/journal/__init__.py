"""The journal of a run: what happened, what was asked of the world, and what came of it, so that nothing is lost."""
