"""The typed files that a step leaves for the next one, and the table of metrics."""
