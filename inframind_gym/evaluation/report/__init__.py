"""A report of results folders as one HTML file."""
