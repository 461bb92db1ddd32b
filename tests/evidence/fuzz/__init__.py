"""`make fuzz`: mutated input for every reader of outside bytes, each call with a limit of time and of memory."""
