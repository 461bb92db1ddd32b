"""Runs on this machine: start, cache, history, summary, comparison."""
