"""Runs the TPU compiler in a separate process, without a TPU, and reads costs from the compiled programs."""
