"""What belongs to appendix A: its exercises, one file a subject, and what it alone shows."""
