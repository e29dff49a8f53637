"""Claims and exercises of chapter 01."""
