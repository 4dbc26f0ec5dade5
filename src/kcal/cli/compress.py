"""The command ``kcal compress``: a calibrator with fewer support points."""

from __future__ import annotations

from kcal.cli import options


def compress(
    model: options.Model,
    out: options.ModelOut,
    size: options.SupportSize = None,
    max_loss_increase: options.MaxLossIncrease = None,
    method: options.Reduction = "kmeans",
    min_cluster_size: options.MinClusterSize = 1,
    quiet: options.Quiet = False,
) -> None:
    """Write a calibrator with fewer support points: smaller, faster, and with the means of samples in their place.

    The samples of each class are merged into weighted means (kmeans), or some of them are kept (kernel-thinning,
    herding, random). The bandwidth, and with --max-loss-increase the size, are chosen by out-of-fold predictions. A
    mean of one sample is that sample: --min-cluster-size bounds how many samples a mean stands for.

    [bold]Example[/]

    [green]kcal compress model.kcal --size 0.1 --out small.kcal[/]
    """
    from kcal.cli.output import check_writable, console, shown
    from kcal.cli.parameters import parse_value
    from kcal.errors import KcalError
    from kcal.persistence import load_calibrator, save

    check_writable(out, (".kcal", ".safetensors"), inputs=(model,))
    calibrator = load_calibrator(model)
    if not hasattr(calibrator, "compress"):
        raise KcalError(f"{model}: a {type(calibrator).__name__} has no support to compress.")
    small = calibrator.compress(
        None if size is None else parse_value(size),
        max_loss_increase=max_loss_increase,
        method=method,
        min_cluster_size=min_cluster_size,
    )
    save(small, out)
    if not quiet:
        before, after = (one.support_size_ for one in (calibrator, small))
        console().print(shown(f"{out}: {after:,} support points in place of {before:,}"), soft_wrap=True)
