"""The serving kernel, one engine step at a time, in plain Python.

This is the yardstick for the compiled event-jump kernel of `inframind_gym.simulator.server`. It
follows the scheduler of vLLM V1 (priority policy, chunked prefill, eviction by recompute; async
scheduling and prefix caching as options) rule by rule, and prefers being obvious to being fast.
Nothing is imported from `inframind_gym`.

How to read it, top to bottom:

1. `RefServer`, `RefRequest`, `StepRecord`: what goes in and what comes out.
2. `_Engine`: one server. `schedule_running`, then `admit_waiting`, make up a step; `finish_step`
   ends it.
3. `ReferenceKernel`: the clock. At every instant: finishes of all servers, then submissions, then
   new steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RefServer:
    """One model on one GPU: limits, step cost, and the servers it shares the GPU with."""

    max_num_seqs: int  # running requests at most
    max_num_batched_tokens: int  # new tokens in one step at most
    num_kv_blocks: int  # block 0 is reserved, so one less is usable
    block_size: int  # tokens in a KV block
    base_s: float  # cost of a step, whatever is in it
    per_seq_s: float = 0.0  # ... of each request scheduled in it
    per_kv_token_s: float = 0.0  # ... of each token computed earlier that must be read
    per_new_token_s: float = 0.0  # ... of each token computed in it
    per_attention_unit_s: float = 0.0  # ... of prefill: new tokens x context after them
    sparse_s: float = 0.0  # ... at most, for reading the experts that its tokens are sent to
    sparse_tokens: float = 16.0  # tokens that reach all but a share 1/e of them
    roofline_power: float = 1.0  # p: weights and new tokens take (base^p + tokens^p)^(1/p)
    peers: tuple[int, ...] = ()  # indices of the other servers on the same GPU
    slowdown: float = 0.0  # a step takes (1 + slowdown * busy peers) times as long
    shared_prefix_tokens: int = 0  # head of every prompt, in blocks that are never freed
    prefix_caching: bool = False  # freed blocks keep their content until they are taken again
    async_scheduling: bool = False  # a step is scheduled when the one before it starts

    @property
    def usable_blocks(self) -> int:
        """KV blocks that requests can hold on their own."""
        return self.num_kv_blocks - 1 - self.shared_prefix_tokens // self.block_size

    def own_prompt(self, tokens: int) -> int:
        """What is left of a prompt without its shared head; the last token is always computed."""
        whole_blocks = (tokens - 1) // self.block_size * self.block_size
        return tokens - min(self.shared_prefix_tokens, whole_blocks)

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold `tokens` tokens: the quotient, rounded up."""
        return -(-tokens // self.block_size)


@dataclass(eq=False)
class RefRequest:
    """One request. The caller gives the first six fields, the kernel fills in the rest."""

    id: int
    server: int  # index into the kernel's servers
    submit_s: float
    priority: float  # lower is served first; all equal is first come, first served
    prompt_tokens: int
    output_tokens: int  # >= 1, known in advance

    # Results.
    admitted_s: float = math.nan  # start of the step that first admitted it
    first_token_s: float = math.nan
    finish_s: float = math.nan
    evictions: int = 0

    # State while it is being served.
    seq: int = -1  # global order of submission, breaks ties of priority
    emitted: int = 0  # output tokens so far; never lost
    computed: int = 0  # tokens whose KV is in the cache; lost by an eviction
    prefill_target: int = 0  # prompt, plus the tokens emitted before the last eviction
    lost: bool = False  # its server went down, or was down when it was sent
    known_tokens: int = 0  # prompt and output as far as the scheduler has seen them
    blocks: int = 0  # KV blocks held
    cached_tokens: int = 0  # tokens that can be found again in the blocks it holds or last held

    @property
    def rank(self) -> tuple[float, int]:
        """Sorting key: the smallest is admitted first, the largest evicted first."""
        return (self.priority, self.seq)

    @property
    def in_prefill(self) -> bool:
        """Whether something is left to prefill (a chunk of one token is prefill, too)."""
        return self.computed < self.prefill_target

    @property
    def wanted_tokens(self) -> int:
        """New tokens it would compute in the next step, were there no token budget."""
        return self.prefill_target - self.computed if self.in_prefill else 1


@dataclass(frozen=True)
class RefFault:
    """A server is down, or slow, for a while."""

    server: int
    from_s: float
    to_s: float
    slower: float = math.inf  # its steps take so many times as long; infinity: it is down


@dataclass(frozen=True)
class StepRecord:
    """What one engine step did."""

    start_s: float
    duration_s: float
    scheduled: list[tuple[int, int]]  # (request id, new tokens), in scheduling order
    evicted: list[int]  # request ids, in order of eviction
    admitted: list[int]  # request ids, in order of admission; evicted ones come back here, too

    @property
    def end_s(self) -> float:
        """When the step is over."""
        return self.start_s + self.duration_s


@dataclass
class _Engine:
    """One server: its queues, and the step in progress, if there is one."""

    server: RefServer
    waiting: list[RefRequest] = field(default_factory=list)
    running: list[RefRequest] = field(default_factory=list)  # in order of admission
    batch: dict[RefRequest, int] = field(default_factory=dict)  # request -> its new tokens
    # What the free blocks contain, in the order in which they will be taken: a request and which of
    # its blocks it was. Blocks in which nothing can be found come first and have no entry.
    left_over: list[tuple[RefRequest, int]] = field(default_factory=list)
    # Requests that ended with the last step. With async scheduling, this one is scheduled before.
    leaving: list[RefRequest] = field(default_factory=list)
    # Running requests whose client has gone: they leave with the step under way.
    aborted: list[RefRequest] = field(default_factory=list)
    evicted: list[RefRequest] = field(default_factory=list)  # in this step
    admitted: list[RefRequest] = field(default_factory=list)  # in this step
    in_step: bool = False
    slower: float = 1.0  # of the steps that start now
    steps: list[StepRecord] = field(default_factory=list)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def free_blocks(self) -> int:
        held = sum(request.blocks for request in self.running + self.leaving)
        return self.server.usable_blocks - held

    def take_blocks(self, request: RefRequest, blocks: int) -> None:
        """Let a running request hold `blocks` blocks; new ones come from the head of the queue."""
        request.blocks = blocks
        while len(self.left_over) > self.free_blocks():
            self.left_over.pop(0)

    def free_all_blocks(self, request: RefRequest) -> None:
        """Give back what a request holds, the last block first."""
        if self.server.prefix_caching:
            full_blocks = request.cached_tokens // self.server.block_size
            self.left_over += [(request, block) for block in reversed(range(full_blocks))]
        request.blocks = 0

    def find_again(self, request: RefRequest) -> int:
        """Take back its blocks, from the first on, while they are there; one token is computed."""
        found = 0
        at_most = (request.prefill_target - 1) // self.server.block_size
        while found < at_most and (request, found) in self.left_over:
            self.left_over.remove((request, found))
            found += 1
        return found

    def remaining_token_budget(self) -> int:
        return self.server.max_num_batched_tokens - sum(self.batch.values())

    # --- scheduling one step ------------------------------------------------------------------

    def start_step(self, now_s: float, busy_peers: int) -> None:
        self.batch, self.evicted, self.admitted = {}, [], []
        # With async scheduling a step is scheduled when the one before it starts. Nothing that
        # happens in the meantime is known to it, unless there is nothing to do without it.
        last = self.steps[-1] if self.steps else None
        if self.server.async_scheduling and last and last.scheduled and last.end_s == now_s:
            self.schedule(now_s, seen_s=last.start_s)
        if not self.batch and not self.evicted:
            self.see_what_happened()
            self.schedule(now_s, seen_s=now_s)
        self.see_what_happened()
        self.steps.append(
            StepRecord(
                start_s=now_s,
                duration_s=self.step_duration_s(busy_peers),
                scheduled=[(request.id, tokens) for request, tokens in self.batch.items()],
                evicted=[request.id for request in self.evicted],
                admitted=[request.id for request in self.admitted],
            )
        )
        self.in_step = True

    def schedule(self, now_s: float, seen_s: float) -> None:
        """Fill the batch, knowing of the requests that were submitted by `seen_s`."""
        self.schedule_running()
        if not self.evicted:
            self.admit_waiting(now_s, seen_s)

    def see_what_happened(self) -> None:
        """Learn what the steps that are over have computed, and who ended with the last one."""
        for request in self.leaving:
            request.cached_tokens = request.computed
            self.free_all_blocks(request)
        self.leaving = []
        for request in self.running:
            request.cached_tokens = max(request.cached_tokens, request.computed)
        for request in self.running + self.waiting:
            request.known_tokens = self.server.own_prompt(request.prompt_tokens) + request.emitted

    def serve(self, request: RefRequest, tokens: int) -> None:
        """Let a running request compute `tokens` tokens; its blocks can be found at once."""
        self.take_blocks(request, self.server.blocks_for(request.computed + tokens))
        self.batch[request] = tokens
        cached_tokens = min(request.computed + tokens, request.known_tokens)
        request.cached_tokens = max(request.cached_tokens, cached_tokens)

    def schedule_running(self) -> None:
        """Serve the running requests in order, evicting the least urgent where blocks run out."""
        for request in list(self.running):
            if request in self.evicted:
                continue
            if self.remaining_token_budget() == 0:
                return
            tokens = min(request.wanted_tokens, self.remaining_token_budget())
            blocks = self.server.blocks_for(request.computed + tokens)
            while blocks - request.blocks > self.free_blocks():
                victim = max(self.running + self.leaving, key=lambda r: r.rank)
                self.evict(victim)
                if victim is request:
                    return  # the requests behind it are not scheduled in this step
            self.serve(request, tokens)

    def evict(self, victim: RefRequest) -> None:
        """Throw a running request back to the queue; it will prefill all it had from scratch."""
        self.free_all_blocks(victim)
        self.evicted.append(victim)
        if victim in self.leaving:  # after its last step, so it gives up what it needs no more
            self.leaving.remove(victim)
            return
        victim.evictions += 1
        self.running.remove(victim)
        self.batch.pop(victim, None)  # if scheduled in this step: its tokens return to the budget
        victim.computed = 0
        victim.prefill_target = self.server.own_prompt(victim.prompt_tokens) + victim.emitted
        self.waiting.append(victim)

    def admit_waiting(self, now_s: float, seen_s: float) -> None:
        """Admit by rank while slots and tokens last; a head that does not fit blocks the rest."""
        seen = [request for request in self.waiting if request.submit_s <= seen_s]
        for request in sorted(seen, key=lambda r: r.rank):
            taken_slots = len(self.running) + len(self.leaving)
            if taken_slots == self.server.max_num_seqs or self.remaining_token_budget() == 0:
                return
            if self.server.blocks_for(request.prefill_target) > self.free_blocks():
                return  # the whole sequence must fit, though only the chunk's blocks are taken
            request.computed = self.find_again(request) * self.server.block_size
            tokens = min(request.prefill_target - request.computed, self.remaining_token_budget())
            request.cached_tokens = request.computed
            self.waiting.remove(request)
            self.running.append(request)
            self.serve(request, tokens)
            self.admitted.append(request)
            if math.isnan(request.admitted_s):
                request.admitted_s = now_s

    def step_duration_s(self, busy_peers: int) -> float:
        """Step cost; a step that only evicts computes nothing and takes no time."""
        if not self.batch:
            return 0.0
        kv_tokens = sum(request.computed for request in self.batch)
        new_tokens = sum(self.batch.values())
        attention_units = sum(
            tokens * (request.computed + tokens)
            for request, tokens in self.batch.items()
            if request.in_prefill
        )
        power = self.server.roofline_power
        computing_s = self.server.per_new_token_s * new_tokens
        alone_s = (
            (self.server.base_s**power + computing_s**power) ** (1.0 / power)
            + self.server.per_seq_s * len(self.batch)
            + self.server.per_kv_token_s * kv_tokens
            + self.server.per_attention_unit_s * attention_units
            + self.server.sparse_s * (1.0 - math.exp(-new_tokens / self.server.sparse_tokens))
        )
        return alone_s * (1.0 + self.server.slowdown * busy_peers) * self.slower

    # --- ending it ----------------------------------------------------------------------------

    def finish_step(self, now_s: float) -> None:
        """Count the new tokens and emit output tokens."""
        for request, tokens in self.batch.items():
            request.computed += tokens
            if request.in_prefill:
                continue
            request.emitted += 1
            if request.emitted == 1:
                request.first_token_s = now_s
            if request.emitted == request.output_tokens:
                request.finish_s = now_s
                self.running.remove(request)
                self.leaving.append(request)
        for request in self.aborted:
            request.finish_s = math.nan
            if request in self.running:
                self.running.remove(request)
                self.leaving.append(request)
        self.aborted = []
        self.in_step = False

    def die(self) -> None:
        """Go down: everything is lost, what the cache contains too."""
        for request in self.waiting + self.running:
            request.lost = True
        self.waiting, self.running, self.leaving, self.aborted = [], [], [], []
        self.batch, self.left_over, self.in_step = {}, [], False

    def abort(self, request: RefRequest) -> None:
        """The client waits no longer."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.aborted.append(request)


class ReferenceKernel:
    """All servers of a cluster on one clock.

    Example:
        >>> server = RefServer(8, 2048, 1000, 16, base_s=0.01)
        >>> kernel = ReferenceKernel([server])
        >>> done = kernel.run([RefRequest(0, 0, 0.0, 0.0, prompt_tokens=100, output_tokens=3)])
        >>> [len(steps) for steps in kernel.steps]
        [3]
    """

    def __init__(
        self,
        servers: Sequence[RefServer],
        timeout_s: float = math.inf,
        faults: Sequence[RefFault] = (),
    ) -> None:
        """Start at time 0 with `servers` idle; peers are indices into this sequence.

        A request that has not ended `timeout_s` after its submission is aborted by its client.
        Requests at a server that is down are lost.
        """
        self._faults = faults
        self._timeout_s = timeout_s
        self._watched: list[RefRequest] = []  # submitted, in that order
        self.now_s = 0.0
        self._engines = [_Engine(server) for server in servers]
        self._pending: list[RefRequest] = []  # not visible yet, by submit_s, then their order
        self._num_submitted = 0

    @property
    def steps(self) -> list[list[StepRecord]]:
        """Per server, the steps started so far."""
        return [engine.steps for engine in self._engines]

    def run(self, requests: Iterable[RefRequest]) -> list[RefRequest]:
        """Serve fresh requests, and return them with their results filled in.

        Ties of priority are broken by `submit_s`, then by the order here.
        """
        requests = list(requests)
        for request in requests:
            own_prompt = self._engines[request.server].server.own_prompt
            request.prefill_target = own_prompt(request.prompt_tokens)
        self._pending = sorted(requests, key=lambda request: request.submit_s)
        while self._pending or any(engine.in_step for engine in self._engines):
            self._advance()
        return requests

    def _advance(self) -> None:
        """Move the clock to the next event and do everything that happens at that instant."""
        step_ends = [engine.steps[-1].end_s for engine in self._engines if engine.in_step]
        submissions = [request.submit_s for request in self._pending[:1]]
        self._watched = [r for r in self._watched if math.isnan(r.finish_s) and not r.lost]
        timeouts = [request.submit_s + self._timeout_s for request in self._watched[:1]]
        changes = [time for f in self._faults for time in (f.from_s, f.to_s) if time > self.now_s]
        self.now_s = min(step_ends + submissions + timeouts + changes)

        # First, on all servers, what finishes now.
        for engine in self._engines:
            if engine.in_step and engine.steps[-1].end_s == self.now_s:
                engine.finish_step(self.now_s)

        # Then what is submitted now, so that ...
        while self._pending and self._pending[0].submit_s == self.now_s:
            request = self._pending.pop(0)
            request.seq = self._num_submitted
            self._num_submitted += 1
            self._engines[request.server].waiting.append(request)
            self._watched.append(request)

        # Then what goes wrong now.
        for m, engine in enumerate(self._engines):
            factors = [f.slower for f in self._faults if f.server == m and self._is_on(f)]
            engine.slower = math.prod(factor for factor in factors if factor < math.inf)
            if math.inf in factors:
                engine.die()

        # ... the steps that start now see all of it, as do their busy peers.
        self._start_steps()

        # Last what times out; those that waited behind it may fit.
        while self._watched and self._watched[0].submit_s + self._timeout_s == self.now_s:
            request = self._watched.pop(0)
            if math.isnan(request.finish_s) and not request.lost:
                self._engines[request.server].abort(request)
        self._start_steps()

    def _is_on(self, fault: RefFault) -> bool:
        return fault.from_s <= self.now_s < fault.to_s

    def _start_steps(self) -> None:
        for engine in self._engines:
            if engine.has_work() and not engine.in_step:
                busy_peers = sum(self._engines[peer].has_work() for peer in engine.server.peers)
                engine.start_step(self.now_s, busy_peers)
