"""The engine: an ordered parallel map over small tasks, in worker processes that share memory.

It knows nothing of datasets. A `Program` is sent to the workers once; a task is `(stage, payload,
inputs)`; its outputs come back as a `Bundle` of arrays that lie in shared memory. One process
starts the next: trainer, zygote (one per trainer), helper (one per pool), workers.

    pool.py      what the trainer holds: `Pool`, waiting, the life of the processes
    ledger.py    tasks and attempts: sent, answered, lost with a worker, sent again
    bundle.py    the outputs of one task
    draft.py     what the trainer itself makes, as inputs of tasks
    slots.py     which slots are free, which are handed out; the byte budget
    launch.py    start and share the zygote, the environment of workers, `keep_alive`, `supported`
    process.py   what is started as a program, and why it could not be
    helper.py    the zygote and the helper: start workers, report deaths, end with the trainer
    imports.py   which modules a pipeline names, whether a fork after their import is safe
    locations.py  modules that a worker would not find by their names, and code of no module
    namesakes.py  modules of one name, of which workers have one
    namespaces.py  globals of a script that code looks up by name
    overlaps.py  arrays of one memory, which share it in workers
    registrations.py  classes that are nodes of trees for JAX, in workers too
    worker.py    one worker: take a task, run it, answer
    observer.py  what the trainer's code reads from modules
    called.py    which functions it calls
    changed.py   what it changes itself
    describer.py, likeness.py, changes.py  values and code as what is compared
    guards.py    what code makes only where it is absent
    growths.py   containers that code adds to, compared as they grow
    drift.py     compares it in a worker
    signals.py   which signals are left to the trainer, and what steps start has
    orphans.py   workers whose helper is gone, until they are gone, too
    surroundings.py  what a worker takes over: directory, environment, and a list of settings
    log.py       log records of workers, for the trainer's handlers
    title.py     what a process is called in a list of processes
    table.py     what each worker is doing, readable after its death
    arena.py     memory files, slots in them, arrays on slots, `is_slot_memory`
    wire.py      tasks and outputs as bytes: arrays by offset, the script's classes by name
    parcel.py    the pipeline as a memory file
    culprit.py   which part of a value does not pickle
    faults.py    a user's exception on its way from a worker to the trainer
    channel.py   sockets that keep messages whole

What keeps contents right: a slot belongs to one *attempt* at a task. It is free again when that
attempt has reported and the last array on it is gone, or when its worker is reaped.
"""
