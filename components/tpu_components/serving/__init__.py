"""An HTTP server for an exported model, as Vertex AI requires of custom containers. It is not a pipeline step."""
