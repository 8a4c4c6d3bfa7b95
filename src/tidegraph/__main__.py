"""`python -m tidegraph`: the command."""

from tidegraph.cli.app import main

if __name__ == "__main__":
    main()
