"""Claims and exercises of chapter 09."""
