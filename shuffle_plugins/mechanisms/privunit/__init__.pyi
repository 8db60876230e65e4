from . import blanket_mixed as blanket_mixed
from . import half_spaces as half_spaces
from . import privunit as privunit
from . import privunit_g as privunit_g
from . import privunit_reports as privunit_reports
from . import privunit_sum as privunit_sum
from . import projunit as projunit
