"""The handlers of messages, and the forms of messages in requests and replies."""
