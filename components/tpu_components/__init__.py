"""Steps of the pipeline (one package each), their shared package `core`, and the server for exported models."""
