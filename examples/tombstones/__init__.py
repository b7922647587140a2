"""Patients' stays, reduced; a check-out deletes the patient."""
