"""Every word and layout that crosses a boundary, without I/O and without Arrow."""
