"""The embedded study: a tiny model, a task with a hidden utility, and `humanline demo`. Minutes on two cores."""
