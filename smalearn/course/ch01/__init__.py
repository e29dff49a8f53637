"""What belongs to chapter 01: its exercises, one file a subject, and what it alone shows."""
