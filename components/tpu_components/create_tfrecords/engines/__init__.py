"""Writes records with several commands or with Apache Beam. The files are the same as from a single command."""
