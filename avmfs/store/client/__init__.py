"""Sending commands: to the writer's socket, or applied here where no daemon runs.

Owns the client's connections, what is resent after a writer's end, watching for commits. Runs in every process but the
writer.
"""
