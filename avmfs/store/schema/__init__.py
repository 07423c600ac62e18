"""The tables, and how a database is opened, made and migrated.

Owns every CREATE statement, the pragmas of a connection and the gate that a fork waits at. Runs in every process.
Imports `files` alone.
"""
