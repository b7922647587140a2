"""The same read through each door: made-up stores and cases, the doors, and what each says in one form."""
