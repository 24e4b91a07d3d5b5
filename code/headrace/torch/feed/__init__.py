"""Feed servers: they make batches on data hosts; ranks ask for them over TCP."""
