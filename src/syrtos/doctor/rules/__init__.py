"""Rules of the doctor, one file per subject: each rule is a function from a program to findings."""
