"""Receipts of a project's training runs, and the intervals of step times that are derived from them."""
