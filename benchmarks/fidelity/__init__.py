"""The simulator beside logs and measured runs, and the page that says how far they are apart."""
