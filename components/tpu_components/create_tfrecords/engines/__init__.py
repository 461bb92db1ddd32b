"""Writes records with several commands or with Apache Beam; the bytes are those that one machine writes."""
