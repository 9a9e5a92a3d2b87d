"""`python -m extender.settings` prints docs/settings.md."""

from extender.settings.page import page

if __name__ == "__main__":
    print(page(), end="")
