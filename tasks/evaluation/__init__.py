"""Reports of measured models: intervals, tables of errors, comparisons of two models, and the page that shows them."""
