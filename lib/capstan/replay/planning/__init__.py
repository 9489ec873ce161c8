"""Planning of a replay: its request, computation, target layout and cursor."""
