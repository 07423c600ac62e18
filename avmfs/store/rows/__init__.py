"""What rows mean: values of tables, encodings, and SQL that more than one room shares.

Owns how contents, old versions, checksums, scopes, log operations, events and the hash chain are stated. Runs in every
process. Knows no transaction and no policy in force; imports `schema` alone.
"""
