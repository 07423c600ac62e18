"""``python -m avmfs.mcp``."""

from avmfs.mcp.main import main

if __name__ == "__main__":
    main()
