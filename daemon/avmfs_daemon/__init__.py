"""The daemon: one supervisor, one writer, one index, one door, one housekeeper, one FUSE child per agent.

The supervisor is a plain loop in one thread; children come from a fork server that starts before any thread or
model. Between processes go msgpack maps, never pickled objects; only the supervisor's own start message to a
new child is built by `multiprocessing`.
"""
