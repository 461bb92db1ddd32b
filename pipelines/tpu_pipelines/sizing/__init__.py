"""Memory, time and price of a training step on a machine, estimated before a run."""
