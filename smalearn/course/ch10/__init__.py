"""What belongs to chapter 10: its exercises, one file a subject, and what it alone shows."""
