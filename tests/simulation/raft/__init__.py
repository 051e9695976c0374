"""The voters of the metadata log, their disks, their clients, and what goes wrong around them."""
