"""Claims and exercises of appendix A."""
