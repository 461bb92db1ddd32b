"""Writes records with several commands or with Apache Beam. One machine alone would write the same files."""
