"""Who is told of a commit, before its reply.

Owns the ring in shared memory that caches follow, and the notices to kernels with their filter. The writer writes,
mounts read. Imports `files`, `schema` and `rows`.
"""
