"""Where a client counts what it has spent: in a file of its own, or in Flower's context."""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import cast

from flwr.app import ConfigRecord, Context, RecordDict

from flwr_shuffle.limits import ClientRefusal, ClientRefused, ClientSettings
from flwr_shuffle.messages import Instruction
from flwr_shuffle.randomizers import Randomizer
from shuffle_plugins.ledger import (
    ClientLedger,
    ClientLimits,
    ClientSpending,
    LedgerError,
    Refused,
    ReportRefused,
)

STATE_KEY = "shuffle-ledger"
"""Key of the count in ``context.state``."""

_TOKENS, _EPSILONS, _DELTAS = "tokens", "local-epsilons", "local-deltas"
_log = logging.getLogger("flwr")


_CODES = {
    Refused.MAX_LOCAL_EPSILON: ClientRefusal.MAX_LOCAL_EPSILON,
    Refused.MAX_ROUNDS: ClientRefusal.MAX_ROUNDS,
    Refused.MAX_TOTAL: ClientRefusal.MAX_TOTAL_LOCAL_EPSILON,
    Refused.TOKEN_SPENT: ClientRefusal.TOKEN_SPENT,
}


def charge(
    context: Context, settings: ClientSettings, instruction: Instruction, mechanism: Randomizer
) -> None:
    """Charge one report of a round to this client, before it trains; a file has it when this returns.

    Without a file the count is in ``context.state``. Flower keeps that per node and run, and only when the
    app has answered: it does not outlast a crash of the client, nor the run. It is there for simulations.

    Raises:
        ClientRefused: if a limit would be exceeded, the token was charged before, or the file cannot be used.
            Nothing is charged then.
    """
    try:
        if settings.ledger_file is None:
            _warn_of_short_memory()
            _charge_state(context.state, instruction.token, mechanism, settings.limits)
            return
        with ClientLedger(settings.ledger_file) as ledger:
            ledger.charge(
                run=instruction.run,
                token=instruction.token,
                server_round=instruction.server_round,
                mechanism=mechanism.name,
                local_epsilon=mechanism.local_epsilon,
                local_delta=mechanism.local_delta,
                limits=settings.limits,
            )
    except ReportRefused as refused:
        code = _CODES[refused.code]
        if code is ClientRefusal.MAX_LOCAL_EPSILON and math.isinf(mechanism.local_epsilon):
            code = ClientRefusal.NO_SUMS
        raise ClientRefused(code) from refused
    except (LedgerError, OSError) as error:
        raise ClientRefused(ClientRefusal.LEDGER) from error


def _charge_state(state: RecordDict, token: bytes, mechanism: Randomizer, limits: ClientLimits) -> None:
    record = state.config_records.get(STATE_KEY, ConfigRecord({_TOKENS: [], _EPSILONS: [], _DELTAS: []}))
    tokens = cast(list[bytes], record[_TOKENS])
    epsilons, deltas = cast(list[float], record[_EPSILONS]), cast(list[float], record[_DELTAS])
    if token in tokens:
        raise ReportRefused(Refused.TOKEN_SPENT)
    spent = ClientSpending(
        reports=len(tokens), local_epsilon=math.fsum(epsilons), local_delta=math.fsum(deltas)
    )
    limits.check(local_epsilon=mechanism.local_epsilon, spent=spent)
    state[STATE_KEY] = ConfigRecord(
        {
            _TOKENS: [*tokens, token],
            _EPSILONS: [*epsilons, mechanism.local_epsilon],
            _DELTAS: [*deltas, mechanism.local_delta],
        }
    )


@cache
def _warn_of_short_memory() -> None:
    _log.warning(
        "No shuffle-ledger-file in this client's node_config: what it has spent is forgotten after this run. "
        "Right for a simulation; a real client needs the file."
    )
