"""Distribution of work to processes and machines, with resumption of interrupted work."""
