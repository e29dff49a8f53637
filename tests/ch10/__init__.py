"""Claims and exercises of chapter 10."""
