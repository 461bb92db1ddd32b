"""Writes records with several commands or with Apache Beam, in the same bytes as a single machine."""
