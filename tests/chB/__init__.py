"""Claims and exercises of appendix B."""
