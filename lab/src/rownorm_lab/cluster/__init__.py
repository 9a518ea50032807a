"""A Ray cluster that takes the jobs of ``bench`` and ``tune``: one process for each GPU."""


class ClusterError(RuntimeError):
    """The cluster cannot be used. The message says why and what to do."""


class ProcessLost(RuntimeError):
    """A job raises it if its process cannot be used any more. The job is given to a new process."""
