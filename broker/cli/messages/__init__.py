"""The commands about topics and their messages."""
