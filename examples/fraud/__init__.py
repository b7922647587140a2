"""How much each card pays within ten minutes, and whether that is suspicious."""
