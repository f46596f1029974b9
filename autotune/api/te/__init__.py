"""⑪ Tensor expressions of a user: tasks, schedules by hand, workloads."""
