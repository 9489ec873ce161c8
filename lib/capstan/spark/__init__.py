"""What Capstan runs on: the project's folder, a Java, Delta's jars."""
