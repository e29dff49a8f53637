"""Claims and exercises of chapter 05."""
