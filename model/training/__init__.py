"""Training, scoring and the command line."""
