"""A run's configuration: settings, step resources, machines, and their schema."""
