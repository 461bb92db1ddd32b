"""What can be known before a run, from seconds of reading to a compiled training step."""
