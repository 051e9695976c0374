"""Clock, crash, timers and threads."""
