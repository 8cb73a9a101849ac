"""What is left of the former package, until every command is a study."""
