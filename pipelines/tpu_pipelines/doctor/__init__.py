"""What a check is, with its findings and remedies, and read-only requests to Google Cloud and to registries."""
