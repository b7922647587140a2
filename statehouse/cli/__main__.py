"""`python -m statehouse.cli`: the same as `statehouse`."""

from statehouse.cli.main import main

if __name__ == "__main__":
    main()
