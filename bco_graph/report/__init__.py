"""What a run folder says, for people and for programs: nothing here runs, pays or changes a run."""
