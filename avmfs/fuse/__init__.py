"""Front ends: thin adapters between a FUSE library and vfs.Tree. Only this package knows FUSE."""
