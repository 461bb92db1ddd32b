"""Whether a run is needed, and what CI shows of runs."""
