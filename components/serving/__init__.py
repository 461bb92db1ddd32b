"""An exported model behind HTTP, as Vertex AI calls a custom container. Not a step: it runs what export_model wrote."""
