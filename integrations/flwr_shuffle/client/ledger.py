"""A client's record of what it has spent: in a file of its own, or in Flower's context."""

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import cache
from typing import cast

from flwr.app import ConfigRecord, Context, RecordDict

from flwr_shuffle.client.limits import ClientRefused, ClientSettings
from flwr_shuffle.messages import ClientRefusal, Instruction
from shuffle_plugins.ledger import Charged, ClientLedger, ClientLimits, LedgerError, Refused, ReportRefused
from shuffle_plugins.mechanisms import PrivateSum, SeveralReports

STATE_KEY = "shuffle-ledger"
"""Key of the record in ``context.state``."""

_TOKENS, _EPSILONS, _DELTAS, _SHUFFLED = "tokens", "local-epsilons", "local-deltas", "shuffled"
_NOTHING_PROMISED = "-"  # a ConfigRecord holds no None
_OUTCOMES_KEY, _ROUNDS, _FAILED = "shuffle-outcomes", "rounds", "failed"
_log = logging.getLogger("flwr")


_CODES = {
    Refused.MAX_LOCAL_EPSILON: ClientRefusal.MAX_LOCAL_EPSILON,
    Refused.MAX_ROUNDS: ClientRefusal.MAX_ROUNDS,
    Refused.MAX_TOTAL: ClientRefusal.MAX_TOTAL_LOCAL_EPSILON,
    Refused.TOKEN_SPENT: ClientRefusal.TOKEN_SPENT,
    Refused.NOT_SUMMED: ClientRefusal.SUMS_ALONE,
    Refused.FEW_REPORTS: ClientRefusal.MIN_REPORTS,
    Refused.MAX_EPSILON: ClientRefusal.MAX_EPSILON,
}


def charge(
    context: Context,
    settings: ClientSettings,
    instruction: Instruction,
    mechanism: PrivateSum,
    *,
    shuffled: str | None,
) -> None:
    """Charge all reports of a round to this client, before it trains; if there is a file, it is on disk then.

    Without a file the record is in ``context.state``. Flower saves that per node and run, and only when the
    app has answered: it survives neither a crash of the client nor the end of the run. It is meant for
    simulations.

    Args:
        context: the client app's context, whose state keeps the record if there is no file.
        settings: what the client agrees to, and where it records.
        instruction: the round's instruction from the server.
        mechanism: the mechanism that randomises each report.
        shuffled: the round of as many reports as were promised; None if it cannot be accounted for.

    Raises:
        ClientRefused: if a limit would be exceeded, the token was charged before, or the file cannot be used.
            Nothing is charged then.
    """
    sent = SeveralReports(mechanism, instruction.samples_per_client)
    try:
        if settings.ledger_file is None:
            _warn_of_no_file()
            charged = Charged(shuffled, sent.local_epsilon, sent.local_delta)
            _charge_state(
                context.state,
                instruction.token,
                charged,
                limits=settings.limits,
                summed=mechanism.must_be_summed,
            )
            return
        with ClientLedger(settings.ledger_file) as ledger:
            _log_path(str(ledger.path))
            ledger.charge(
                run=instruction.run,
                token=instruction.token,
                server_round=instruction.server_round,
                mechanism=sent.name,
                local_epsilon=sent.local_epsilon,
                local_delta=sent.local_delta,
                limits=settings.limits,
                shuffled=shuffled,
                summed=mechanism.must_be_summed,
            )
    except ReportRefused as refused:
        code = _CODES[refused.code]
        if code is ClientRefusal.MAX_LOCAL_EPSILON and math.isinf(mechanism.local_epsilon):
            code = ClientRefusal.NO_SUMS
        raise ClientRefused(code) from refused
    except (LedgerError, OSError) as error:
        raise ClientRefused(ClientRefusal.LEDGER) from error


def _charge_state(
    state: RecordDict, token: bytes, charged: Charged, *, limits: ClientLimits, summed: bool
) -> None:
    empty = ConfigRecord({_TOKENS: [], _EPSILONS: [], _DELTAS: [], _SHUFFLED: []})
    record = state.config_records.get(STATE_KEY, empty)
    tokens, rounds = cast(list[bytes], record[_TOKENS]), cast(list[str], record[_SHUFFLED])
    epsilons, deltas = cast(list[float], record[_EPSILONS]), cast(list[float], record[_DELTAS])
    if token in tokens:
        raise ReportRefused(Refused.TOKEN_SPENT)
    history = Counter(
        Charged(None if shuffled == _NOTHING_PROMISED else shuffled, epsilon, delta)
        for shuffled, epsilon, delta in zip(rounds, epsilons, deltas, strict=True)
    )
    limits.check(charged=charged, history=history, summed=summed)
    state[STATE_KEY] = ConfigRecord(
        {
            _TOKENS: [*tokens, token],
            _EPSILONS: [*epsilons, charged.local_epsilon],
            _DELTAS: [*deltas, charged.local_delta],
            _SHUFFLED: [*rounds, charged.shuffled or _NOTHING_PROMISED],
        }
    )


def count_outcome(context: Context, *, failed: bool) -> None:
    """Record in the run's context, which stays on the client, whether the app failed in a round."""
    record = context.state.config_records.get(_OUTCOMES_KEY, ConfigRecord({_ROUNDS: 0, _FAILED: 0}))
    rounds, failures = cast(int, record[_ROUNDS]), cast(int, record[_FAILED])
    context.state[_OUTCOMES_KEY] = ConfigRecord({_ROUNDS: rounds + 1, _FAILED: failures + failed})


def failed_share(context: Context) -> float:
    """The share of this run's rounds in which the app failed; 0 before the first."""
    record = context.state.config_records.get(_OUTCOMES_KEY)
    return 0.0 if record is None else cast(int, record[_FAILED]) / cast(int, record[_ROUNDS])


@cache
def _log_path(path: str) -> None:
    _log.info("shuffle: this client counts what it spends in %s", path)


@cache
def _warn_of_no_file() -> None:
    _log.warning(
        "No shuffle-ledger-file in this client's node_config: what it has spent is forgotten after this run. "
        "Right for a simulation; a real client needs the file."
    )
