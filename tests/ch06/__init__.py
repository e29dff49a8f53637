"""Claims and exercises of chapter 06."""
