"""The list of all checks, a workspace's places, and what a compiled training step tells before a run."""
