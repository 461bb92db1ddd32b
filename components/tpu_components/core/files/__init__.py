"""Files, local and in buckets, typed JSON files, and the clients of Google's services."""
