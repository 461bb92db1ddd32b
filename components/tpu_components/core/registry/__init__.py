"""Model registry: versions of models, and aliases that point to versions, in a folder or on Vertex AI."""
