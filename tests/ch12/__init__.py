"""Claims and exercises of chapter 12."""
