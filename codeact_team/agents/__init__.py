"""The agents: AutoGen chat agents that write, run, repair and judge code."""
