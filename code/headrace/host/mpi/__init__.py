"""MPI over the dnn hosts: mpirun, its daemons, its ranks and their output."""
