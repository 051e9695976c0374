"""Reading records over HTTP."""
