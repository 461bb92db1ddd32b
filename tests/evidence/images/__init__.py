"""The images built, looked into and run, and what they leave compared with plain processes: `make images-test`."""
