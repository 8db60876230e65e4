"""Prio3 gives the bytes of the draft's test vectors, and refuses what they call bad."""

import json
from pathlib import Path

import numpy as np
import pytest

from shuffle_plugins.secure_aggregation import prio3

VECTORS = Path(__file__).parent / "vectors"
FILES = sorted(VECTORS.glob("Prio3*.json"), key=lambda path: path.stem)
VARIANTS = {
    "Prio3Count": (prio3.Prio3Count, ()),
    "Prio3Sum": (prio3.Prio3Sum, ("max_measurement",)),
    "Prio3SumVec": (prio3.Prio3SumVec, ("length", "max_measurement", "chunk_length")),
    "Prio3SumVecWithMultiproof": (
        prio3.Prio3SumVecWithMultiproof,
        ("length", "max_measurement", "chunk_length"),
    ),
    "Prio3Histogram": (prio3.Prio3Histogram, ("length", "chunk_length")),
    "Prio3MultihotCountVec": (prio3.Prio3MultihotCountVec, ("length", "max_weight", "chunk_length")),
}


class Replay:
    """The operations of one test vector, each on the messages that the vector gives."""

    def __init__(self, path: Path) -> None:
        self.vector = json.loads(path.read_text())
        self.reports = self.vector["reports"]
        variant, parameters = VARIANTS[path.stem.split("_")[0]]
        self.prio3 = variant(shares=self.vector["shares"], **{name: self.vector[name] for name in parameters})
        self.context = bytes.fromhex(self.vector["ctx"])
        self.states: dict[tuple[int, int], prio3.VerifyState] = {}

    def run(self, operation: dict) -> None:
        step = getattr(self, operation["operation"])
        arguments = {k: v for k, v in operation.items() if k not in ("operation", "success", "round")}
        if operation["success"]:
            step(**arguments)
        else:
            with pytest.raises(prio3.VerificationError):
                step(**arguments)

    def shard(self, report_index: int) -> None:
        wanted = self.reports[report_index]
        nonce, rand = bytes.fromhex(wanted["nonce"]), bytes.fromhex(wanted["rand"])
        assert len(rand) == self.prio3.rand_size
        made = self.prio3.shard(wanted["measurement"], context=self.context, nonce=nonce, rand=rand)
        assert made.public_share.hex() == wanted["public_share"]
        assert [share.hex() for share in made.input_shares] == wanted["input_shares"]
        assert [len(share) for share in made.input_shares] == [
            self.prio3.input_share_size(j) for j in range(self.prio3.shares)
        ]

    def verify_init(self, report_index: int, aggregator_id: int) -> None:
        given = self.reports[report_index]
        state, share = self.prio3.verify_init(
            verify_key=bytes.fromhex(self.vector["verify_key"]),
            context=self.context,
            aggregator=aggregator_id,
            nonce=bytes.fromhex(given["nonce"]),
            public_share=bytes.fromhex(given["public_share"]),
            input_share=bytes.fromhex(given["input_shares"][aggregator_id]),
        )
        assert share.hex() == given["verifier_shares"][0][aggregator_id]
        assert len(share) == self.prio3.verifier_share_size
        self.states[report_index, aggregator_id] = state

    def verifier_shares_to_message(self, report_index: int) -> None:
        given = self.reports[report_index]
        shares = [bytes.fromhex(share) for share in given["verifier_shares"][0]]
        message = self.prio3.verifier_shares_to_message(shares, context=self.context)
        assert message.hex() == given["verifier_messages"][0]

    def verify_next(self, report_index: int, aggregator_id: int) -> None:
        given = self.reports[report_index]
        message = bytes.fromhex(given["verifier_messages"][0])
        output = self.prio3.verify_next(self.states[report_index, aggregator_id], message)
        assert self.prio3.encode_agg_share(output).hex() == given["out_shares"][aggregator_id]

    def aggregate(self, aggregator_id: int) -> None:
        share = self.prio3.agg_init()
        for given in self.reports:
            out = bytes.fromhex(given["out_shares"][aggregator_id])
            output = self.prio3.field.decode(out, count=self.prio3.valid.output_length)
            share = self.prio3.agg_update(share, output)
        assert self.prio3.encode_agg_share(share).hex() == self.vector["agg_shares"][aggregator_id]

    def unshard(self) -> None:
        shares = [bytes.fromhex(share) for share in self.vector["agg_shares"]]
        result = self.prio3.unshard(shares, num_measurements=len(self.reports))
        assert np.asarray(result).tolist() == self.vector["agg_result"]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_operation_of_a_published_vector(path: Path) -> None:
    replay = Replay(path)
    assert replay.vector["operations"]
    for operation in replay.vector["operations"]:
        replay.run(operation)


def test_all_published_vectors_are_here() -> None:
    assert len(FILES) == 24
    assert sum("_bad_" in path.stem for path in FILES) == 8


def test_the_random_bytes_of_a_seed() -> None:
    vector = json.loads((VECTORS / "XofTurboShake128.json").read_text())
    seed, tag, binder = (bytes.fromhex(vector[name]) for name in ("seed", "dst", "binder"))
    assert prio3.prio3._stream(seed, tag, binder).read(32).hex() == vector["derived_seed"]
    expanded = prio3.prio3.expand_into_vector(
        prio3.field.FIELD128, seed, tag=tag, binder=binder, length=vector["length"]
    )
    assert prio3.field.FIELD128.encode(expanded).hex() == vector["expanded_vec_field128"]
