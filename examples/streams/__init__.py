"""Stream jobs, each with its own topics.

::

    python -m examples.streams word_count --url http://127.0.0.1:8080

publishes the sample input of ``examples.streams.word_count``, runs its job on it, and prints the job's output. Each
module has ``job()``, which returns the job, and ``publish(client)``, which publishes the sample.
"""
