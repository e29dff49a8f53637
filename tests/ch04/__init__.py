"""Claims and exercises of chapter 04."""
