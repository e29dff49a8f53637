"""What belongs to chapter 12: its exercises, one file a subject, and what it alone shows."""
