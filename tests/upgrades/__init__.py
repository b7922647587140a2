"""A fleet under traffic whose parts are replaced by another version, one after the other, and back."""
