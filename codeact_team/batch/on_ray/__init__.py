"""The workers of a batch on the nodes of a Ray cluster. Only :mod:`codeact_team.batch.on_ray.gateway` knows Ray."""
