"""HTTP server for an export, by Vertex AI's contract for custom containers. It is not a pipeline step."""
