"""`python -m attnscope`, where the command is not on the path."""

from attnscope.cli import main

main()
