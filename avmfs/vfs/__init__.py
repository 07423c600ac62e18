"""What the mounted tree *is*, with no knowledge of FUSE.

``address`` resolves paths, ``open_file`` and ``virtual_handles`` are open handles, ``tree`` is the whole as operations
on paths and handles, ``locks`` holds file locks across mounts. A front end translates; it decides nothing.
"""
