"""Workers on other hosts: the agent that starts them there, and its messages."""
