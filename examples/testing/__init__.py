"""What the tests of the examples share."""
