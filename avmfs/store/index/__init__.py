"""Words and vectors in memory.

Owns columns, postings and answers of earlier questions (in each process that searches), and the index process that
holds all vectors by visibility class. Knows no agents: the caller names the scopes.
"""
