"""Command line and inputs of a step, the record of its outcome, and messages about runs that did not succeed."""
