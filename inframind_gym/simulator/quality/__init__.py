"""Does an answer solve the query, and how long is it: the response model of the surrogate."""
