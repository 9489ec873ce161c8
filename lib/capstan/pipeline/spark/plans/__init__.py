"""Operators as Spark plans over complete times: the same rows as the engine gives, by its laws."""
