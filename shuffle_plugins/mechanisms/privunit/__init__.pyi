from . import blanket_mixed_law as blanket_mixed_law
from . import half_spaces_law as half_spaces_law
from . import privunit_g_law as privunit_g_law
from . import privunit_law as privunit_law
from . import privunit_reports as privunit_reports
from . import privunit_sum as privunit_sum
from . import projunit_law as projunit_law
