"""What belongs to appendix B: its exercises, one file a subject."""
