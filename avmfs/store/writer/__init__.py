"""The one process that changes a store.

Owns the loop of group commit, its sockets and its scheduler, syncs of the log, checkpoints, the room kept on a full
disk, the replies that a resent request gets. Runs in the writer; the applier and the sync also in a program that
writes without a daemon. Must not import `queries`, `index`, `cache`, `client` or `store`.
"""
