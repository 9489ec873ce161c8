"""Recordings onto tapes and off them: files, sockets, and other tapes."""
