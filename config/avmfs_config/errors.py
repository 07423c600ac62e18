"""The one error of this package: a value, named by its file and its key, that cannot be used.

Raised by every module here; caught by the programs, which print `str(error)` as it is. It knows nothing of
how files are read.
"""


class ConfigError(ValueError):
    """A configuration problem. `str()` is one line: ``mounts.yaml: mounts[1].agent_id: required``.

    `file` is the file's name, or ``environment`` for a variable. `key` is the path of the key, the variable's
    name, ``LINE:COLUMN`` for broken YAML, or empty where the problem is the file as a whole. `reason` says
    what is wrong and, where it can, what to write instead.
    """

    def __init__(self, file: str, key: str, reason: str) -> None:
        super().__init__(file, key, reason)  # all three, so that the error survives pickling
        self.file = file
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.key, self.reason) if part)
