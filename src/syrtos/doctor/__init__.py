"""Diagnosis of machines and of scripts on several workers: what will break, go wrong or be slow."""
