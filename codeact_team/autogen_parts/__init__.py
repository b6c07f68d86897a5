"""What AutoGen's own agents use, wrapped so that it passes the door.

The wrappers are put around the parts of every config that is loaded, and by :func:`wrap` around those of Python. They
are invisible in a dump. The agents of this package take them off tools, workbenches and executors, as they pass the door
themselves.
"""

from codeact_team.autogen_parts.wrapping import past_the_door, unwrap, wrap

__all__ = ["past_the_door", "unwrap", "wrap"]
