// Block access of q4_1.
