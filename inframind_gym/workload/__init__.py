"""What arrives when and with which budget: workload profiles, arrival processes, trace replay."""
