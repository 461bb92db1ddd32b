"""Stores receipts of training runs (measured step times), and derives intervals of step times from them."""
