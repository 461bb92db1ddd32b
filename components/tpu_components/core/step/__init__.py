"""Old names of `core.component`, which components that were compiled before it was renamed import when they run."""
