"""Receipts of a project's own training runs, and the intervals that follow from them."""
