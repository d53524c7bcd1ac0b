"""The public test kit: what applications and this project's own tests need to test a broker.

Nothing here is imported by the broker itself; importing a part costs only what that part needs.
"""
