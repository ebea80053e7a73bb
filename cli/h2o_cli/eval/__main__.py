"""`python -m h2o_cli.eval`."""

from h2o_cli.eval.command import main

if __name__ == "__main__":
    main()
