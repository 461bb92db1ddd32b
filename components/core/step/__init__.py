"""What every step shares as a step: its command line, its inputs, its record."""
