"""``python -m kcal``: the command line."""

from kcal.cli import main

if __name__ == "__main__":
    main()
