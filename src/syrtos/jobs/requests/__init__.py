"""CreateTrainingJob requests, read into syrtos's own terms, and the states that a job goes through."""
