"""Stream jobs, each over topics of its own.

::

    python -m examples.streams word_count --url http://127.0.0.1:8080

publishes the sample input of ``examples.streams.word_count``, runs its job over it, and prints what the job has
published. Each module has ``job()``, which returns the job, and ``publish(client)``, which publishes the sample.
"""
