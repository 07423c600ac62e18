"""`python -m avmfs_daemon`."""

from avmfs_daemon.main import main

if __name__ == "__main__":
    main()
