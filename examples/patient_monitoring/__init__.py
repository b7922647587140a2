"""Patient monitoring: heart beats counted by the minute, and alerts where a fast pulse meets a fever."""
