"""Code that runs in each rank, and the variables and files by which ranks and launchers communicate."""
