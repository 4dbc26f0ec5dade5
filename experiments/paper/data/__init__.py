"""The paper's data sets, read as their owners distribute them: one module each, one table."""

from experiments.paper.data import cifar, iiic, imagenet, isruc, pn2017, svhn
from experiments.paper.data.sources import DataSet

DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet("cifar10", cifar.CIFAR10.layout, cifar.prepare_cifar10),
        DataSet("cifar100", cifar.CIFAR100.layout, cifar.prepare_cifar100),
        DataSet("svhn", svhn.LAYOUT, svhn.prepare),
        DataSet("imagenet", imagenet.LAYOUT, imagenet.prepare),
        DataSet("pn2017", pn2017.LAYOUT, pn2017.prepare),
        DataSet("isruc", isruc.LAYOUT, isruc.prepare),
        DataSet("iiic", iiic.LAYOUT, iiic.prepare),
    )
}
"""Every data set of the paper, by its name on the command line."""
