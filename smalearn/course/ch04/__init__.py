"""What belongs to chapter 04: its exercises, one file a subject, and what it alone shows."""
