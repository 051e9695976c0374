"""What must hold after every step, each law in a file of its own.

A checker looks at what voters ask of their shell and at what the disks hold, never inside a voter: its
own account of its log is what is doubted.
"""
