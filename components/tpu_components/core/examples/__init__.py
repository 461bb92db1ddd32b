"""Examples and batches: interface, pixels, text, records, input pipelines, example IDs."""
