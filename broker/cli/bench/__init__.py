"""``broker bench``: how fast a broker takes messages and gives them out, from where this runs."""
