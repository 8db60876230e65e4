from . import checks as checks
from .packing import pack_bits as pack_bits
from .reports import FieldLayout as FieldLayout
from .reports import ReportLayout as ReportLayout
from .reports import Reports as Reports
from .rounding import rounded as rounded
from .rows import Rows as Rows
