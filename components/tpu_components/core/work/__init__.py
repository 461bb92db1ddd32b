"""Distributes work to processes and machines; interrupted work is resumed."""
