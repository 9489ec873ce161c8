"""Long lists on pages: what they are narrowed to, and their pages."""
