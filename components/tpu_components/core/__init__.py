"""Code that the steps share. A package imports only from packages above it in the table of components/README.md."""
