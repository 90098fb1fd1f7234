"""What a run found, written down: JSON for programs, a terminal page for people, JUnit for CI."""
