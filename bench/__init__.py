"""What recording costs: loads, the tools that record them, what is measured, and the tables. `scripts/bench` is its command.

`loads` says what a load is, `synthetic`, `applications` and `pyperformance` list them, `tools` knows how memtrack, memray
and heaptrack are run, `measuring` runs them in interleaved rounds, `table` prints, `reading` times the reports. What loads
run stands in `programs`, what they draw sizes and lifetimes from in `distributions.json`, which `record_distributions` makes.
"""
