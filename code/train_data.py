"""Run a server of tf.data service, a dispatcher or a worker. The launcher starts it."""

import sys

from headrace.tensorflow.service.servers import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
