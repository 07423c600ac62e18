"""The log that the hosts of one store share: what is asked of it (``protocol``), and the engines that keep it.

A room of its own: it knows no tables and no SQLite. A record is bytes to it.
"""
