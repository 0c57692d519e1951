"""Entry of every stream app: `python stream.py --stream PIPELINE.STREAM --epoch N --instance ID`."""

import sys

from millrace.runtime.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
