"""What belongs to chapter 03: its exercises, one file a subject, and what it alone shows."""
