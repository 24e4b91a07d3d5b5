"""What people see on a terminal: tables, progress, text in any locale."""
