"""Several processes on one port: a supervisor, and the workers that it keeps running."""
