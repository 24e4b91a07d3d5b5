"""Feed servers, which make batches on data hosts, and their clients, through which ranks request batches over TCP."""
