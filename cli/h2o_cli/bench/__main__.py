"""python -m h2o_cli.bench"""

from h2o_cli.bench.command import main

if __name__ == "__main__":
    main()
