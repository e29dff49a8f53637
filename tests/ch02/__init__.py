"""Claims and exercises of chapter 02."""
