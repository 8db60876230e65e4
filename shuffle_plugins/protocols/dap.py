"""Sums as tasks of a DAP deployment: two aggregators that add clients' vectors up and check their range.

Noise comes from the clients, so the aggregators are told to add none. Forms of configuration follow janus at
4ab28a36 (``core/src/vdaf.rs``, ``messages/src/task.rs``, ``docs/samples``) and divviup-api at b1660f5d
(``src/entity/task``), August 2026.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from shuffle_plugins.core import checks
from shuffle_plugins.protocols.coins import CoinSum
from shuffle_plugins.protocols.laplace import LaplaceSum
from shuffle_plugins.protocols.sums import ShuffleProtocol
from shuffle_plugins.protocols.unary import UnaryCounts
from shuffle_plugins.protocols.windows import WindowedSum
from shuffle_plugins.secure_aggregation.prio3.circuits import best_chunk_length

_MOST_LENGTH = (1 << 32) - 2  # libprio refuses 2**32 - 1
_LEAST_DIVVIUP_BATCH = 100
_NO_NOISE = {"dp_strategy": "NoDifferentialPrivacy"}


class Vdaf(StrEnum):
    """Which sums are taken, and what is proven of a client's vector. Names are those of the draft."""

    MULTIHOT_COUNT_VEC = "Prio3MultihotCountVec"
    """Bits of which at most ``max_weight`` are set."""

    SUM_VEC = "Prio3SumVec"
    """Whole numbers in [0, ``max_measurement``]."""


_CODES = {Vdaf.SUM_VEC: 3, Vdaf.MULTIHOT_COUNT_VEC: 5}


@dataclass(frozen=True, kw_only=True, slots=True)
class DapTask:
    """What a DAP deployment must know of a protocol; built by :func:`dap_task`.

    Attributes:
        length: numbers in a client's vector.
        most: ``max_weight`` of Prio3MultihotCountVec, or ``max_measurement`` of Prio3SumVec.
        min_batch_size: reports that a batch must have before it is collected: the protocol's cohort.
        client: what clients do before they share their vectors, in words and numbers; no part of a task.
        offset: what each client takes off each of its numbers before it shares them, so that the range to
            prove starts at 0 and is short; :meth:`total` puts it back.
    """

    vdaf: Vdaf
    length: int
    most: int
    min_batch_size: int
    client: dict[str, Any]
    offset: int = 0

    def __post_init__(self) -> None:
        if self.length > _MOST_LENGTH:
            raise ValueError(
                f"a VDAF takes vectors of up to {_MOST_LENGTH:,} numbers, this protocol has {self.length:,}"
            )
        checks.whole("most", self.most, at_most=(1 << 64) - 1)
        checks.whole("offset", self.offset, at_least=-math.inf)

    def total(self, sums: Tensor, *, reports: int) -> Tensor:
        """The clients' counts added up, as the protocol's ``estimate`` takes them, from its sums."""
        count = checks.whole("reports", reports, at_least=0)
        if sums.shape != (self.length,):
            raise ValueError(f"sums are ({self.length},), got {tuple(sums.shape)}")
        if int(sums.min()) < 0 or int(sums.max()) > count * self.most:
            raise ValueError(f"{count:,} reports of numbers in [0, {self.most:,}] have no such sums")
        return sums.to(torch.int64) + count * self.offset

    @property
    def chunk_length(self) -> int:
        """Bits that one call of the proof's gadget checks: what makes the proof shortest, near √bits."""
        weight = self.most.bit_length()
        return best_chunk_length(self.length + weight if self._multihot else self.length * weight)

    @property
    def parameters(self) -> dict[str, Any]:
        """The VDAF's parameters, under the names of draft-irtf-cfrg-vdaf and of its test vectors."""
        most = "max_weight" if self._multihot else "max_measurement"
        return {"length": self.length, most: self.most, "chunk_length": self.chunk_length}

    def vdaf_config(self) -> bytes:
        """The VdafConfig message of a DAP-18 task configuration: type, length, parameters."""
        layout = ">IIQ" if self._multihot else ">IQI"
        second, third = (self.chunk_length, self.most) if self._multihot else (self.most, self.chunk_length)
        body = struct.pack(layout, self.length, second, third)
        return struct.pack(">IH", _CODES[self.vdaf], len(body)) + body

    def janus(self) -> dict[str, Any]:
        """The fields of a janus task that the protocol decides, as its aggregator API reads them in JSON."""
        self._check_deployed("janus")
        return {
            "vdaf": {str(self.vdaf): {**self._janus_parameters(), "dp_strategy": _NO_NOISE}},
            "min_batch_size": self.min_batch_size,
        }

    def janus_yaml(self) -> str:
        """The same for the task file of ``janus_cli provision-tasks``, in YAML."""
        self._check_deployed("janus")
        lines = [f"vdaf: !{self.vdaf}"]
        lines += [f"  {name}: {value}" for name, value in self._janus_parameters().items()]
        lines += ["  dp_strategy:", "    dp_strategy: NoDifferentialPrivacy"]
        return "\n".join([*lines, f"min_batch_size: {self.min_batch_size}", ""])

    def divviup(self) -> dict[str, Any]:
        """The fields of a new Divvi Up task that the protocol decides, as divviup-api reads them in JSON.

        It is told a number of bits: a liar's number may be as large as so many bits can hold.
        """
        self._check_deployed("Divvi Up")
        if self.min_batch_size < _LEAST_DIVVIUP_BATCH:
            raise ValueError(
                f"Divvi Up takes batches of at least {_LEAST_DIVVIUP_BATCH} reports, the cohort is "
                f"{self.min_batch_size}: calibrate for a larger cohort"
            )
        return {
            "vdaf": {
                "type": "sum_vec",
                "bits": self.most.bit_length(),
                "length": self.length,
                "chunk_length": self.chunk_length,
                "dp_strategy": _NO_NOISE,
            },
            "min_batch_size": self.min_batch_size,
        }

    @property
    def _multihot(self) -> bool:
        return self.vdaf is Vdaf.MULTIHOT_COUNT_VEC

    def _janus_parameters(self) -> dict[str, int]:
        return {"max_measurement": self.most, "length": self.length, "chunk_length": self.chunk_length}

    def _check_deployed(self, name: str) -> None:
        if self._multihot:
            raise ValueError(
                f"{name} does not run {self.vdaf} (August 2026): ask for {Vdaf.SUM_VEC}, which proves that "
                "every number is a bit, but not how many are set"
            )


def dap_task(protocol: ShuffleProtocol, *, vdaf: Vdaf | str | None = None) -> DapTask:
    """A protocol as a task of a DAP deployment.

    What a batch costs is the protocol's ``round`` of everybody in it. It is no secret sample of a population:
    calibrate without ``population``.

    Args:
        protocol: whose reports are vectors of bits or of counts: ``CountedUnary``, ``UnaryL1Sum``,
            ``LaplaceHistogram``, ``HistogramSum`` and other sums of shared Laplace noise or of coins. To
            each number a client of a Laplace sum adds a Pólya number (negative binomial) of the shape
            ``noise_shape`` and of success probability 1 − e^(−``noise_rate``), takes off another one, and
            draws both again while the range does not hold them.
        vdaf: by default ``Prio3MultihotCountVec`` for bits, which ``Prio3SumVec`` may sum too, and
            ``Prio3SumVec`` for counts.
    """
    asked = None if vdaf is None else checks.choice(Vdaf, "vdaf", vdaf)
    common = {"protocol": protocol.name, "honest_fraction": protocol.honest_fraction, "trust_model": "OAMC"}
    if isinstance(protocol, UnaryCounts):
        multihot = asked is not Vdaf.SUM_VEC
        weight = protocol.size if protocol.max_weight is None else protocol.max_weight
        return DapTask(
            vdaf=Vdaf.MULTIHOT_COUNT_VEC if multihot else Vdaf.SUM_VEC,
            length=protocol.size,
            most=weight if multihot else 1,
            min_batch_size=protocol.cohort,
            client=common
            | {
                "encoding": str(protocol.encoding),
                "EPSILON_0": protocol.bit_epsilon,
                "max_weight": weight,
                "false_positive_rate": protocol.false_positive_rate,
            },
        )
    if isinstance(protocol, CoinSum | LaplaceSum) and not isinstance(protocol, WindowedSum):
        counts = protocol.counts  # a far shorter range than that of all messages
        if asked is Vdaf.MULTIHOT_COUNT_VEC:
            raise ValueError(
                f"{protocol.name} sends counts up to {counts.highest:,}, not bits: its VDAF is {Vdaf.SUM_VEC}"
            )
        if isinstance(protocol, CoinSum):
            noise: dict[str, Any] = {"coins": protocol.coins}
        else:
            noise = {"noise_rate": protocol.rate, "noise_shape": [1, protocol.honest_cohort]}
        return DapTask(
            vdaf=Vdaf.SUM_VEC,
            length=counts.size,
            most=counts.highest - counts.lowest,
            min_batch_size=protocol.cohort,
            client=common | {"levels": protocol.levels, **noise, "offset": counts.lowest},
            offset=counts.lowest,
        )
    raise ValueError(
        f"no VDAF adds up what clients of {protocol.name} send: aggregators add, in a prime field, vectors "
        "of bits or of bounded counts. Use LaplaceHistogram, CountedUnary, ScalarSum or VectorSum"
    )
