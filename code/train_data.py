"""One tf.data service server of this host: a dispatcher or a worker. Started by launcher.py."""

import sys

from headrace.tensorflow.service.servers import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
