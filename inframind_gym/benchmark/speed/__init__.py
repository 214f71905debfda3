"""Speed of the simulator on one core: figures, comparisons of two revisions, growth with size."""
