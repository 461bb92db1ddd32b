"""Work that is shared out among processes, and by Apache Beam among machines."""
