"""The leader (the first dnn host) waits for the hosts, starts training, decides the outcome and tells every host."""
