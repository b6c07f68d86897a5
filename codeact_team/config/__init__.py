"""Teams and their parts as YAML or JSON documents."""
