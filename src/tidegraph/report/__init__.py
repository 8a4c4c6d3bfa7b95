"""What a person gets to see: progress on the console, tables of figures, the page of a run."""
