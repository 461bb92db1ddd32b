"""Types of the result files that one step writes and another reads."""
