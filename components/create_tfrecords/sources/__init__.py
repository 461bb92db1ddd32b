"""Where examples come from: a file for each kind of source, and the table of them."""
