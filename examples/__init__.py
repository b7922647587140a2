"""Applications that show the fleet at work; each folder is one."""
