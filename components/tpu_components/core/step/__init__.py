"""Old name of the package `core.component`, for components that were compiled before the package was renamed."""
