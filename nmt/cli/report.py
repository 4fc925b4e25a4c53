"""`nmt report`."""

from typing import Annotated

from typer import Option

from nmt.cli.options import DeviceOption, OpenOption, RunOption, open_file, run_option, show_written
from nmt.runs.folder import open_run
from nmt.system.console import show


def report(
    model: RunOption = None,
    license: Annotated[str | None, Option(metavar="NAME", help="Licence for the model card: mit, cc-by-4.0.")] = None,
    dataset: Annotated[
        list[str] | None, Option(metavar="NAME", help="Data set on Hugging Face; may be repeated.")
    ] = None,
    with_data: Annotated[bool, Option("--with-data", help="Also read and show the texts that the run names.")] = False,
    overlay: Annotated[str | None, run_option("--overlay", help="Draw this run's curves in the charts, too.")] = None,
    is_opened: OpenOption = False,
    device: DeviceOption = None,
) -> None:
    """Write a report about a run (report/index.html in its folder) and a Hugging Face model card (report/README.md)."""
    from nmt.insight.report_output import write_report
    from nmt.system.devices import configure_process

    configure_process()
    overlaid = None if overlay is None else open_run(overlay)
    page = write_report(open_run(model), device or "auto", license, dataset or (), with_data, overlaid)
    show(str(page), link=page)
    show_written(page.with_name("README.md"))
    if is_opened:
        open_file(page)
