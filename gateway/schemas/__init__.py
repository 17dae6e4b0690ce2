"""What clients may send. Unknown fields are ignored; fields that would change meaning are refused."""
