"""The console: a page that every node serves, and the files that make it."""
