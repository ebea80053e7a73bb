"""python -m h2o_cli.run"""

from h2o_cli.run.command import main

if __name__ == "__main__":
    main()
