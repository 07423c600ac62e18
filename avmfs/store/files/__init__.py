"""The store's files below SQLite: formats and locks.

Owns what the write-ahead log and its index say byte by byte, the lock file, the note of what was synced, and whether
names still lead to open files. Runs in every process. Imports no other room.
"""
