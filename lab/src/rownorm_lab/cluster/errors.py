"""What can go wrong with a cluster."""


class ClusterError(RuntimeError):
    """The cluster cannot be used. The message says why and what to do."""


class ProcessLost(RuntimeError):
    """A job raises it if its process cannot be used any more. The job is given to a new process."""
