"""Teams and their parts as YAML or JSON documents."""

from codeact_team.config.dumping import dump_config
from codeact_team.config.for_every import ForEvery
from codeact_team.config.loading import check_config, load_config, validate_config
from codeact_team.config.open import example_executors, open_pool, open_team
from codeact_team.config.schema import config_schema
from codeact_team.config.settings_page import config_reference

__all__ = [
    "ForEvery",
    "check_config",
    "config_reference",
    "config_schema",
    "dump_config",
    "example_executors",
    "load_config",
    "open_pool",
    "open_team",
    "validate_config",
]
