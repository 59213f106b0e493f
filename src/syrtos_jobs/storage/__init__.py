"""The data of jobs: buckets and objects, channels, and archives of results."""
