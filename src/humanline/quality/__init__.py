"""What is in a data set, and whether it is good enough for a given model: `humanline inspect`."""
