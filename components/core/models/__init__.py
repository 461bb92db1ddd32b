"""Models by name: ready ones, building, loading, and the training step that is compiled."""
