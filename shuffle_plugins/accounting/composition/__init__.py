"""Many rounds together: privacy loss distributions convolved, Rényi curves added."""
