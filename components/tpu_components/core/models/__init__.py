"""Models: finding, building and loading them by name, ready-made models, and the compiled training step."""
