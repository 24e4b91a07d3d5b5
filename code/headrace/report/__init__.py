"""What happened: runs told and compared."""
