// Block access of f32.
