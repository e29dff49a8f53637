"""Claims and exercises of chapter 11."""
