"""What each command is made of: its call of a broker, options, output, problems, contexts and completion."""
