from . import prio3 as prio3
