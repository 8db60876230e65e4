from .conformance import CHECKS as CHECKS
from .conformance import check_mechanism as check_mechanism
from .report import CheckResult as CheckResult
from .report import ConformanceError as ConformanceError
from .report import ConformanceReport as ConformanceReport
from .report import Status as Status
from .suite import MechanismConformance as MechanismConformance
