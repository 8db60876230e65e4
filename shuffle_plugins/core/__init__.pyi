from . import checks as checks
from .checks import rounded as rounded
from .packing import pack_bits as pack_bits
from .reports import FieldLayout as FieldLayout
from .reports import ReportLayout as ReportLayout
from .reports import Reports as Reports
from .rows import Rows as Rows
