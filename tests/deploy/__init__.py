"""The files of ``deploy/``: they name what there is, and the programs that take them accept them."""
