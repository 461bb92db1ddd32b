"""Runs the TPU compiler, without a TPU, in a process of its own, and reads costs from the compiled programs."""
