"""Assignment: which agent takes a task, and on which provider, when agents get overloaded."""
