"""`bilip fit` at its default settings beside four alternatives, on the same rows."""
