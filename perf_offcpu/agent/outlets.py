# SPDX-License-Identifier: Apache-2.0
"""Open what the configuration of the agent names: the dataset and its lease, servers, and names of containers. All of
it is replaced when the configuration is read again."""

import time
from collections.abc import Callable
from typing import Final

from perf_offcpu.agent.config import DAY_S, AgentConfig
from perf_offcpu.agent.containers import ContainerAsker
from perf_offcpu.agent.cost.budget import Bucket
from perf_offcpu.agent.delivery import Delivery
from perf_offcpu.agent.journal import Say
from perf_offcpu.agent.metrics import Metrics
from perf_offcpu.agent.sinks import DatasetSink, LeaseKeeper, PushSink
from perf_offcpu.agent.spool import Spool

NO_SERVER: Final = "no-server"  # cause of lost messages


class Outlets:
    """Dataset and its lease, servers and source of container names, as the configuration names them, for a `delivery`.
    `lost`: is called with a sentence when another agent takes the dataset."""

    def __init__(
        self, delivery: Delivery, spool: Spool, metrics: Metrics, say: Say, lost: Callable[[str], None]
    ) -> None:
        self._delivery, self._spool, self._metrics, self._say, self._lost = delivery, spool, metrics, say, lost
        self.lease: LeaseKeeper | None = None
        self._asker: ContainerAsker | None = None

    def use(self, config: AgentConfig, *, take_over: bool = False) -> None:
        """Use another configuration: open what it names, and close what it no longer names. Raise UsageError or OSError
        if that fails, LeaseTakenError if another agent has the dataset and `take_over` is not set."""
        from perf_offcpu.dataset.compact import Upkeep
        from perf_offcpu.push.opening import open_targets

        labels, delivery = dict(config.labels), self._delivery
        self._open_asker(config.containers)
        asker = self._asker
        names = (lambda: asker.names) if asker else None
        dataset = DatasetSink(config.dataset, labels, names) if config.dataset else None
        opened = open_targets(config.push, config.push_header_file, config.push_ca) if config.push else []
        self._hold_lease(dataset, take_over=take_over)
        push = [PushSink(*target, labels, self._spool, self._metrics, self._say) for target in opened]
        before = delivery.push
        delivery.dataset, delivery.push, delivery.period_ns = dataset, push, config.period_ns
        delivery.upkeep = Upkeep(config.keep_ns, delivery.upkeep.hour if delivery.upkeep else -1)
        if not config.max_bytes:
            delivery.bytes = None
        elif delivery.bytes is None:
            delivery.bytes = Bucket(config.max_bytes, DAY_S, time.monotonic())
        else:
            delivery.bytes.change(config.max_bytes)
        for sink in before:
            sink.close(0)
        self._drop_messages({sink.key for sink in push})

    def _open_asker(self, address: str) -> None:
        """Start the thread that asks the CRI socket `address` for containers ("": none); end the former one."""
        if self._asker is not None and self._asker.address != address:
            self._asker.close(0)
            self._asker = None
        if address and self._asker is None:
            self._asker = ContainerAsker(address, self._metrics, self._say)

    def _hold_lease(self, dataset: DatasetSink | None, *, take_over: bool) -> None:
        """Take the lease of `dataset` (None: no lease) and release the former one; raise LeaseTakenError if refused."""
        before, store = self.lease, dataset.dataset.store if dataset else None
        if before is not None and store is not None and before.url == store.url:
            return
        self.lease = LeaseKeeper(store, self._spool, self._say, self._lost, take_over=take_over) if store else None
        if before is not None:
            before.close(0)

    def _drop_messages(self, keys: set[str]) -> None:
        """Remove the messages for other servers than those with these keys, and count them as lost."""
        of_servers = {name for key in keys for name in self._spool.messages(key)}
        if messages := sorted({*self._spool.messages()} - of_servers):
            for name in messages:
                self._spool.remove(name)
            self._metrics.add("push_lost_total", len(messages), NO_SERVER)
            self._say(f"{len(messages)} messages are removed: --push does not name their servers any more")

    def close(self) -> None:
        """Release the lease of the dataset, and end the thread that renews it."""
        if self.lease is not None:
            self.lease.close(0)
