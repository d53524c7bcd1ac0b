"""Run the verifier's command line: ``python -m chaos``."""

from broker.standard_streams import guard_output, open_standard_streams
from chaos.cli import main

if __name__ == "__main__":
    open_standard_streams()
    guard_output()
    main()
