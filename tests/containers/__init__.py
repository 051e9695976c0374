"""The image and compose.yaml for real: needs a Docker engine, and is skipped where none answers."""
