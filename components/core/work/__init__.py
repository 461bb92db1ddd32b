"""Work that is shared out among processes and machines, and goes on where it was killed."""
