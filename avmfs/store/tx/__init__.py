"""One command's transaction, and what the one writing connection keeps in memory.

Owns `Tx`, the writer's memo of directories, places and scopes, quotas, the audit's own rows, random ids. Runs in the
writer, and in a program that writes without a daemon. Imports `schema` and `rows`.
"""
