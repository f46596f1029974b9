"""⑪ `compile`: fallback, mixed precision, dynamic shapes, limited size."""
