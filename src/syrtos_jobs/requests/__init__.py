"""CreateTrainingJob requests, read into syrtos's own terms, and the states of a job."""
