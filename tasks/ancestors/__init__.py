"""The models before BERT, one file each."""
