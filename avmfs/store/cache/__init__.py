"""Nodes and names in a reader's memory, right as of the last commit.

Owns what is remembered and how it follows the log. Runs in mounts and the door.
"""
