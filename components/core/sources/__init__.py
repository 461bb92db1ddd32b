"""Sources of examples: a file for each kind."""
