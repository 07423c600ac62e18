"""The ``avm`` command: a client of the daemon's door, or of the store itself when no daemon runs."""
