"""How fast grain_jax is, beside its peers and beside plain Python; `make bench` runs it.

    workloads.py   what is measured: a source, steps, a batch; its targets
    sources.py, steps.py, files.py   what workloads are made of: plain Python, no library's classes
    peers.py       the libraries, and the settings in which they take part
    grains.py, torches.py, threads.py, floor.py   a workload as an iterable of each peer's
    order.py, reference.py   the stream that has to come out, from plain Python
    processes.py   processor time and memory of a process and its descendants
    measure.py, drivers.py   one measurement, in a process of its own; prints a line of JSON
    runner.py      rounds of measurements, interleaved; writes the JSON
    targets.py, table.py, chart.py   what the JSON says: ratios, Markdown, a bar chart

docs/benchmarks.md says how each figure is taken, and what it does not say.
"""
