"""What belongs to chapter 07: its exercises, one file a subject, and what it alone shows."""
