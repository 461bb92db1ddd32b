"""The TPU compiler without a TPU: a process that compiles training steps, and what is read from its programs."""
