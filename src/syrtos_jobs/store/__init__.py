"""The durable record of jobs: the folder of a service, its database, and what is in it."""
