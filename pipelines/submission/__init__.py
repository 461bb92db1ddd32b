"""A run on a platform: submitted once, followed, scheduled."""
