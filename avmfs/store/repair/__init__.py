"""Looking at damage, and making a store whole again.

Owns the examination that changes nothing, reading of damaged pages, the rebuilt store, a log put back. Runs in `avm
doctor`, `avm repair` and, for the log, in the supervisor. Nothing else imports it.
"""
