"""What belongs to chapter 11: its exercises, one file a subject, and what it alone shows."""
