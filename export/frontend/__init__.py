"""What an export can start from: one file per front end, each of which gives a `Source`."""
