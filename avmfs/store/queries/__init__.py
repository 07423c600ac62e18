"""Every SELECT about what a principal may see.

Owns `Reader` and its parts, and the pool of reading connections. Runs in mounts, door, keeper and index process.
Never writes.
"""
