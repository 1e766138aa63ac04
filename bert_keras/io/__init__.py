"""Files, folders, paths and signals: atomic writes, locks, folders that resume, limits on what is read."""
