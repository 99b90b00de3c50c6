"""What the package is made of: pins, licences, and a bill of materials."""
