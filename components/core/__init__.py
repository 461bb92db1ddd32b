"""What the steps share, by rooms: a room imports from those above it in README.md's table."""
