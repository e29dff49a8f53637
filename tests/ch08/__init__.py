"""Claims and exercises of chapter 08."""
