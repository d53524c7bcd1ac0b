"""``python -m broker.cli``: the same as the command ``broker``."""

from broker.cli import main

if __name__ == "__main__":
    main()
