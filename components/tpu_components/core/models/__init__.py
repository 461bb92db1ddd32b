"""Models: finding, building and loading models by name, ready-made models, and the compiled training step."""
