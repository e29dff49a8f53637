"""Claims and exercises of chapter 03."""
