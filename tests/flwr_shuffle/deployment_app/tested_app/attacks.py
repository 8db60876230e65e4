"""What a server can try on a mixer: requests that it must refuse, and envelopes that it must drop."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr_shuffle.messages import Role
from flwr_shuffle.service_messages import SERVICE_KEY, MixMessage, RoleQuestion, refusal_in

from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, RoundContext
from shuffle_plugins.shuffler.envelopes import open_reports, seal
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServicePublicKey,
    SigningKey,
    parse_mixer_public_key,
    public_key_bytes,
    read_signing_key,
)
from tested_app.pauses import folder

_BATCH = 10  # accomplices; the chance that a fair shuffle leaves ten in their order is 1 in 3,628,800
_ORDERS = 3


@dataclass(frozen=True)
class _Round:
    """All that a server needs to make envelopes as its accomplices would."""

    context: RoundContext
    size: int
    mixer_key: bytes
    analyzer_key: bytes
    pinned: ServicePublicKey

    def envelope(self, report: bytes | None, signing_key) -> bytes:
        return seal(
            report,
            size=self.size,
            context=self.context,
            analyzer_key=self.analyzer_key,
            mixer_key=self.mixer_key,
            signing_key=signing_key,
        )

    def request(self, envelopes: list[bytes], *, minimum: int = 2) -> MixMessage:
        request = BatchRequest.of(
            envelopes,
            context=self.context,
            analyzer_key=self.analyzer_key,
            mixers=(self.pinned,),
            minimum=minimum,
        )
        return MixMessage(request=request, first=0, items=envelopes, most=len(envelopes))


def attack(
    grid: Grid,
    *,
    dim: int,
    mixer_public_key: str,
    randomizer: str,
    local_epsilon: float,
    clipping_norm: float,
) -> dict:
    """Send what a mixer must refuse or drop. Returns what came of it by the attack's name.

    That is the mixer's code; or the order in which it gave the reports out, and what it dropped by position.
    """
    spec = MechanismSpec(name=randomizer, local_epsilon=local_epsilon, radius=clipping_norm)
    mechanism = spec.build(dim=dim)
    reports = [mechanism.randomize(torch.zeros(1, dim), clip=True).to_bytes() for _ in range(_BATCH)]
    accomplices = [read_signing_key(folder() / f"accomplice-{i}.key") for i in range(_BATCH)]
    mixer, pinned = _mixer(grid), parse_mixer_public_key(mixer_public_key)
    mixer_key = pinned.sealing
    analyzer = SealingKey.generate()

    def new_round() -> _Round:
        context = RoundContext(
            run="attack", token=secrets.token_bytes(16), fingerprint=spec.fingerprint(dim=dim)
        )
        return _Round(context, spec.report_bytes(dim=dim), mixer_key, public_key_bytes(analyzer), pinned)

    def honest(current: _Round) -> list[bytes]:
        return [current.envelope(report, key) for report, key in zip(reports, accomplices, strict=True)]

    fresh = [new_round() for _ in range(20)]
    tampered = honest(fresh[0])
    tampered[3] = tampered[3][:-1] + bytes([tampered[3][-1] ^ 1])
    copied = honest(fresh[1])
    twice = honest(fresh[2])
    twice[1] = fresh[2].envelope(reports[1], accomplices[0])
    stranger = honest(fresh[3])
    stranger[0] = fresh[3].envelope(reports[0], SigningKey.generate())
    other_mixer = replace(fresh[4], mixer_key=public_key_bytes(SealingKey.generate()))
    longer = fresh[5].request(honest(fresh[5]))
    longer = replace(longer, items=[longer.items[0] + b"\0", *longer.items[1:]])
    alone = [fresh[6].envelope(reports[0], accomplices[0])]
    alone += [fresh[6].envelope(None, key) for key in accomplices[1:]]
    other_round = fresh[7].request(honest(fresh[8]))
    other_run = fresh[9]
    other_run = replace(other_run, context=replace(other_run.context, run="another"))
    good = fresh[10]
    once = good.request(honest(good))
    requests = {
        "tampered": fresh[0].request(tampered),
        "the same envelope twice": fresh[1].request([*copied[:-1], copied[0]]),
        "two envelopes of one client": fresh[2].request(twice),
        "a client that is not enrolled": fresh[3].request(stranger),
        "sealed to another mixer": fresh[4].request(honest(other_mixer)),
        "an envelope of another size": longer,
        "one report among dummies": fresh[6].request(alone),
        "under the mixer's minimum": fresh[11].request(honest(fresh[11])[:1]),
        "under the server's minimum": fresh[12].request(honest(fresh[12])[:5], minimum=6),
        "envelopes of another round": other_round,
        "envelopes of another run": other_run.request(honest(fresh[9])),
        "good": once,
        "replayed": once,
        "the same envelopes in a new round": fresh[13].request(once.items),
        "the same round, new envelopes": good.request(honest(good)),
    }
    orders = [new_round() for _ in range(_ORDERS)]
    requests |= {f"order {i}": orders[i].request(honest(orders[i])) for i in range(_ORDERS)}
    contents = {name: request.to_content() for name, request in requests.items()}
    contents["not a request"] = RecordDict({SERVICE_KEY: ConfigRecord({"envelopes": [b"x"]})})
    outcomes: dict = {}
    for name, content in contents.items():
        answer = next(iter(grid.send_and_receive([Message(content, mixer, Role.MIXER.work)], timeout=60)))
        if answer.has_error():
            outcomes[name] = f"error: {answer.error.reason}"
        elif code := refusal_in(answer.content):
            outcomes[name] = f"unsigned {code}"
        else:
            asked = requests[name]
            try:
                found = asked.read(
                    answer.content, verifying_key=asked.request.mixers[asked.request.position].verifying
                )
            except BatchRefused as refused:
                outcomes[name] = str(refused.code)
                continue
            opened = open_reports(found.items, context=asked.request.context, analyzer_private_key=analyzer)
            order = [reports.index(report) for report in opened]
            rejected = {position: str(code) for position, code in found.said.rejected.items()}
            outcomes[name] = {"order": order, "rejected": rejected}
    return outcomes


def _mixer(grid: Grid) -> int:
    for answer in grid.send_and_receive(
        [
            Message(RoleQuestion(challenge=bytes(32)).to_content(), node, Role.MIXER.question)
            for node in grid.get_node_ids()
        ],
        timeout=60,
    ):
        if answer.has_content() and refusal_in(answer.content) is None:
            return answer.metadata.src_node_id
    raise RuntimeError("no mixer")
