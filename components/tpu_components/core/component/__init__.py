"""Command line, inputs and record of every step."""
