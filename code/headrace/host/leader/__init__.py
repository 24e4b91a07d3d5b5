"""What the first dnn host does for the whole job: wait for the hosts, train, decide the outcome, tell every host."""
