from typing import Any

__version__: str

class RefusedError(ValueError): ...
class DefectError(RuntimeError): ...

class Frame:
    """A table by columns, which any library takes that knows the Arrow PyCapsule interface."""

    @property
    def columns(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def to_dict(self) -> dict[str, list[Any]]: ...
    def to_parquet(self) -> bytes: ...

class Run:
    @property
    def warnings(self) -> str: ...
    def json(self) -> str: ...
    def html(self) -> str: ...
    def table(self) -> str: ...
    def results(self) -> Frame: ...
    def requests(self) -> Frame: ...
    def series(self) -> Frame: ...
    def timeline(self) -> Frame: ...
    def memory(self) -> Frame: ...
    def lengths(self) -> Frame: ...

def run(name: str, text: str | None, set: list[str], seed: int | None) -> Run: ...
def perform(arguments: list[str]) -> tuple[str, str]: ...
def batches(name: str, text: str | None, set: list[str], seed: int | None) -> str: ...
def play(name: str, text: str | None, set: list[str], seed: int | None, policy: str, steps: str) -> str: ...
def serve_by(name: str, text: str | None, set: list[str], seed: int | None, policy: str | None, given: object) -> str: ...

class Request:
    """A request that looks for a replica."""

    index: int
    arrival_s: float
    prompt_tokens: int
    priority: int
    is_computed: bool

class Replica:
    """A replica that may take the request."""

    index: int
    group: str
    requests: int
    running: int
    decoding: int
    free_blocks: int
    cached_tokens: int

class Prompt:
    """A prompt under way, or a request in the queue."""

    request: int
    arrival_s: float
    tokens: int
    computed: int
    tokens_max: int
    generated: int
    priority: int

class Iteration:
    """A replica before an iteration."""

    at_s: float
    decoding: int
    decode_tokens: int
    tokens_max: int
    running: int
    sequences_max: int
    free_blocks: int
    block_tokens: int
    prompts: list[Prompt]
    waiting: list[Prompt]

class Group:
    """A group of replicas, as a scaler sees it."""

    up: int
    current: int
    requests: float

class Interval:
    """An interval that has ended."""

    at_s: float
    interval_s: float
    arrived: int
    prompt_tokens: float | None
    output_tokens: float | None
    ttft_s: float | None
    tpot_s: float | None
    groups: dict[str, Group]
