// Block access of f16.
