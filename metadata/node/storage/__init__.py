"""The metadata log on disk: frames, files and the mark of what was synced."""
