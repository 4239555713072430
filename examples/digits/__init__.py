"""Scikit-learn's handwritten digits as a TFDS dataset."""
