"""The paper's data sets, read as their owners distribute them: one module each, one table."""

from experiments.paper.data import pn2017
from experiments.paper.data.sources import DataSet

DATA_SETS = {data_set.name: data_set for data_set in (DataSet("pn2017", pn2017.LAYOUT, pn2017.prepare),)}
