"""Patients with the wards that they are in: a foreign-key join."""
