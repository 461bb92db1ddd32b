"""Commands before a run: the list of all checks, from the content of files to requests to the platform."""
