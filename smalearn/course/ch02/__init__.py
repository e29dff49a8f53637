"""What belongs to chapter 02: its exercises, one file a subject, and what it alone shows."""
