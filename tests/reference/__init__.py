"""Reference engines, with which tests compare the product and the recordings of the originals."""
