// Block access of q8_0.
