"""Every error a caller or the world can cause, in one tree.

    DsparkError
    ├── InvalidRequestError          a field of a request is wrong; names the field and the mend
    │   └── ContextTooLongError      prompt and output do not fit the model's context
    ├── ModelMismatchError           target, drafter or checkpoint do not fit each other
    ├── ConfigurationError           this machine or these settings cannot start the process
    ├── UnknownRequestError          the service holds no such request
    ├── StaleBaseError               a message was made for another `base_committed_len`
    ├── StaleEpochError              a message was made by an owner that lost its lease
    ├── OverloadedError              the queue is full; says when to come back
    ├── ServiceUnavailableError      a peer cannot be reached
    │   └── PeerLostError            a peer was lost in the middle of its work for us; it may be resumed
    ├── DeadlineError                a peer did not answer in time
    └── EngineError                  a forward pass failed

Bugs of our own are assertions, never members of this tree.
"""


class DsparkError(Exception):
    """Root of the errors that cross a boundary of dspark."""


class InvalidRequestError(DsparkError):
    """A field of the request is wrong.

    Attributes:
        field: the name of the field as its user wrote it.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ContextTooLongError(InvalidRequestError):
    """Prompt and requested output do not fit the model's context."""


class ModelMismatchError(DsparkError):
    """Target, drafter or checkpoint do not fit each other."""


class ConfigurationError(DsparkError):
    """This machine or these settings cannot start the process."""


class UnknownRequestError(DsparkError):
    """The service holds no such request."""


class StaleBaseError(DsparkError):
    """A message was made for another `base_committed_len`."""


class StaleEpochError(DsparkError):
    """A message was made by an owner that lost its lease."""


class OverloadedError(DsparkError):
    """The queue is full.

    Attributes:
        retry_after_s: seconds after which a new attempt may succeed.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceUnavailableError(DsparkError):
    """A peer cannot be reached."""


class PeerLostError(ServiceUnavailableError):
    """A peer was lost in the middle of its work for us; whoever takes its place may go on with it."""


class DeadlineError(DsparkError):
    """A peer did not answer in time."""


class EngineError(DsparkError):
    """A forward pass failed."""
