"""Output to a terminal: tables, a progress line, text in any locale."""
