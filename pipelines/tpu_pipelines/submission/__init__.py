"""Runs on a platform: submits a run without duplicates, follows it to its end, and schedules runs."""
