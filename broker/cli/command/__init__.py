"""The parts of a command: its call of a broker, options, output, problems, contexts and completion."""
