"""Compaction of tables that grow by small files: which files, and their rewriting without a JVM."""
