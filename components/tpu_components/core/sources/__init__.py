"""Sources of examples, such as folders and CSV files: one module per kind."""
