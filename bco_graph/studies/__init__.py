"""Studies on finished runs: each reads run folders and measures what the run itself may not see."""
