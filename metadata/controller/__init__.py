"""Who is alive, and which elections are due: decided on the leader of the metadata group, pure."""
