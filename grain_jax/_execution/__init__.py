"""Floor 3: how descriptions run, in this process, in worker processes and in threads ahead.

A plan comes in, and elements go out, each with the cursor behind it:

    iterator.py, positioned.py   the iterator that a user has: lock, state, owner
    pipeline.py    runs a plan from a position: executors, streams, where it stands
    cuts.py        a plan as an iterator runs it, and what is known of it before it runs
    layout.py      how positions are dealt out over shards and lanes
    virtual.py     over how many shards that count for themselves, and what cannot be dealt out
    forms.py       how cursors are nested; the cursor of the start
    building.py    streams for a cursor: leaves, tasks, groupings, behind and beside one another
    runs.py        what streams hand on: neighbouring outputs, not decoded, and their cursors
    joined_runs.py elements of several runs, as one run
    leaves.py      streams that begin: records by position
    iterables.py   streams that begin: iterables of the user's own, read in this process
    tasks.py       the outputs of one stage, in order, made ahead by an executor
    parents.py     the streams that are grouped or merged, and what of them is here
    gathering.py   streams of streams, as a grouping decides
    merging.py     streams of streams by a schedule, many elements at once
    grouped.py     tasks of groups, and of single elements behind others
    caching.py     streams whose elements are kept for when they begin anew
    inline.py, reads.py   the executor in this process, and its reading thread
    workers.py, engine/   the executor in worker processes
    silence.py, sieves.py, skips.py   records that give nothing, what filters drop, and records that
                   an error policy left out

State and identity:

    states.py      a position as JSON, and back; version1.py reads the first format
    cursors.py     the cursors in it, read along the form of a pipeline's
    grain_iterators.py   states of Grain's dataset iterators
    joining.py     the states of all shards as those of fewer or more
    fingerprint.py what has to be equal for a state to mean the same
    snapshots.py   copies of the user's objects as an iteration begins

Beside the training loop:

    threaded.py    a dataset's iterator that a thread reads ahead
    prefetch_iterator.py, producing.py, ahead.py, here.py, ownership.py, roles.py, relay.py
                   elements made ahead, and who answers for the position of an iterator that
                   is read ahead
    serial.py      operations of the user's own, over the ordered stream
    generators.py, keeping.py   generators that code holds, which workers would have copies of
    farewell.py    ends that are not waited for longer than is said
"""
