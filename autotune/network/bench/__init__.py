"""⑩ Latencies and throughput of a running network, beside other runtimes."""
