from .conformance import CHECKS as CHECKS
from .conformance import CheckResult as CheckResult
from .conformance import ConformanceError as ConformanceError
from .conformance import ConformanceReport as ConformanceReport
from .conformance import Status as Status
from .conformance import check_mechanism as check_mechanism
from .suite import MechanismConformance as MechanismConformance
