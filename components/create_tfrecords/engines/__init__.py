"""Records that several commands, or the workers of Apache Beam, write: the bytes that one machine writes."""
