"""What belongs to chapter 09: its exercises, one file a subject, and what it alone shows."""
