"""The steps of the pipeline, with one package each, the package `core` that they share, and the server of an export."""
