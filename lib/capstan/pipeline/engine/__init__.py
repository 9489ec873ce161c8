"""Engine that runs a graph, event by event in order of time."""
