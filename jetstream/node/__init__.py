"""The shell: sockets, NATS, disk threads, timers; the only place where things meet."""
