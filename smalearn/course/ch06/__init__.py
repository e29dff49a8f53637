"""What belongs to chapter 06: its exercises, one file a subject, and what it alone shows."""
