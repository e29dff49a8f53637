"""What belongs to chapter 08: its exercises, one file a subject, and what it alone shows."""
