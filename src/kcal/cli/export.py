"""The command ``kcal export``: a calibrator as an ONNX file."""

from __future__ import annotations

from kcal.cli import options


def export(
    model: options.Model,
    out: options.OnnxOut,
    data: options.VerifyData = None,
    tolerance: options.Tolerance = None,
    quiet: options.Quiet = False,
) -> None:
    """Write a calibrator as an ONNX file: embeddings and logits in, probabilities (and evidence) out.

    The inputs are [cyan]embeddings[/], [cyan]logits[/] or both, as the method takes them, with any number of rows. The
    file is verified before it is kept, on rows of --data or on rows made like the calibration set: onnxruntime must
    predict as the calibrator does, at several batch sizes, and as torch does far from these rows. A network and its
    calibration in one file are written in Python, by CalibratedClassifier.to_onnx.

    [bold]Example[/]

    [green]kcal export model.kcal --out head.onnx[/]
    """
    import torch
    from rich.filesize import decimal

    from kcal.cli.data import Source
    from kcal.cli.output import check_writable, console, shown
    from kcal.cli.samples import load_to_predict
    from kcal.deployment import TOLERANCE, HeadPredictor, metadata_of, write_onnx
    from kcal.persistence import load_calibrator

    check_writable(out, (".onnx",), inputs=(model, data))
    calibrator = load_calibrator(model)
    predictor = HeadPredictor(calibrator)
    if data is None:
        rows = calibrator.example_inputs()
    else:
        samples = load_to_predict(calibrator, Source.from_options(data, {}, prefixes=("", "test_")))
        rows = {name: torch.as_tensor(getattr(samples, name)) for name in predictor.names}
    example = [rows[name].float() for name in predictor.names]
    metadata, show = metadata_of(calibrator), False if quiet else None
    write_onnx(predictor, example, out, metadata=metadata, tolerance=tolerance or TOLERANCE, progress=show)
    if not quiet:
        signature = f"{', '.join(predictor.names)} to {', '.join(predictor.output_names)}"
        text = f"{out}: {signature}, verified with onnxruntime, {decimal(out.stat().st_size)}"
        console().print(shown(text), soft_wrap=True)
