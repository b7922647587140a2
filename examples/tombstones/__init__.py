"""Patients' stays, reduced; who checks out is forgotten."""
