"""Checks and their findings, and those that ask a platform, read-only, before anything is submitted or paid."""
