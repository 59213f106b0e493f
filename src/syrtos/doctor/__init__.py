"""Diagnosis of scripts on several workers and of machines: finds what will break, go wrong or be slow."""
