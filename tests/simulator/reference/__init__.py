"""Plain references that the compiled code of `inframind_gym` is tested against."""
