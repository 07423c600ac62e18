"""``bench_value``, every category, by the name that the customer's documents use.

python benchmarks/run_parallel.py [OPTIONS OF bench_value]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.bench_value import main

if __name__ == "__main__":
    sys.exit(main([*sys.argv[1:]]))
