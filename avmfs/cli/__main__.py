"""``python -m avmfs.cli``."""

from avmfs.cli.main import main

if __name__ == "__main__":
    main()
