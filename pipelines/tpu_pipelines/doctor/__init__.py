"""Checks of a run and their findings; the checks of a platform send only read-only requests."""
