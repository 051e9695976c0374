"""When the metadata shell's tasks wake."""
