"""Claims and exercises of chapter 07."""
