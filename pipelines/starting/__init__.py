"""A first configuration for data that nobody has prepared."""
