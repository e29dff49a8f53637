"""Claims and exercises of chapter 00."""
