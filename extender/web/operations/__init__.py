"""Pages for those who operate the server: what shadow mode has found, the status, the settings, the health checks."""
