"""What belongs to chapter 05: its exercises, one file a subject, and what it alone shows."""
