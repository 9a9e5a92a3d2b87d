"""What follows from the settings while the server runs: the file is loaded again when it changes; in shadow mode our
scheduling gates are removed."""
