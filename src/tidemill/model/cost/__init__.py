"""What each join algorithm does for a stream row, one file an algorithm."""
