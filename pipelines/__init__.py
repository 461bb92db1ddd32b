"""The pipeline that wires the steps, and the ways to run it."""
