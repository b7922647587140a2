"""The application of the project's README."""
