"""⑤ Satellite: text of kernels for GPUs, of schedules whose loops are bound; no search."""
