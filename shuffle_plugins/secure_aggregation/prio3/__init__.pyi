from .prio3 import Prio3 as Prio3
from .prio3 import Prio3Count as Prio3Count
from .prio3 import Prio3Histogram as Prio3Histogram
from .prio3 import Prio3MultihotCountVec as Prio3MultihotCountVec
from .prio3 import Prio3Sum as Prio3Sum
from .prio3 import Prio3SumVec as Prio3SumVec
from .prio3 import Prio3SumVecWithMultiproof as Prio3SumVecWithMultiproof
from .prio3 import VerificationError as VerificationError
