"""A simulated fleet: real decisions in a simulated world, all from one seed (docs/simulation.md)."""
