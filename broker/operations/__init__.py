"""The operations of the interface, each declared once."""
