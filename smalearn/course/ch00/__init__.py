"""What belongs to chapter 00: its exercises, one file a subject, and what it alone shows."""
