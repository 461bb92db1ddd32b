"""The steps of the pipeline, one package each; `core`, which they share; and the server of an export."""
