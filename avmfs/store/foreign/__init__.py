"""Databases of other programs, as they are read to be imported."""
