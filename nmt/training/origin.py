"""The run that a training starts from (`training.init_from`): its weights, its test sets, its corpora to replay."""

from nmt.config.corpus import CorpusFiles
from nmt.config.training import Config
from nmt.errors import DataError
from nmt.evaluation.evaluate import corpus_test_set
from nmt.runs.base import starting_run
from nmt.runs.folder import RunFolder
from nmt.system.console import log
from nmt.system.files import file_sha256
from nmt.training.record import RecordedFile, RecordedOrigin, read_record, recorded_corpus


def find_origin(config: Config) -> RecordedOrigin | None:
    """The run of `training.init_from`, which `config` must name for a new training; None if it names none.

    A test set of that run that cannot be read is a line. Raises `DataError` if a corpus to replay is missing or not
    the one that the run was trained on.
    """
    if config.training.init_from is None:
        return None
    run = starting_run(config.training.init_from)
    _check_replayed(config, run)
    model = RecordedFile(path=str(run.model_file), sha256=file_sha256(run.model_file))
    files = _test_sets(config, run)
    test = {name: recorded_corpus(one, config.source) for name, one in files.items()}
    return RecordedOrigin(run=str(run.path), model=model, test=test, test_files=files)


def own_test_sets(run: RunFolder) -> dict[str, CorpusFiles]:
    """The test sets of a run, or else its validation set; none of an imported one."""
    if not run.has_training_config():
        return {}
    data = run.config().data
    if data.test or data.validation.holdout == 0:  # which are training pairs
        return dict(data.test)
    return {"validation": data.validation}


def _test_sets(config: Config, run: RunFolder) -> dict[str, CorpusFiles]:
    """The test sets of the new run and of the one that it starts from, whose names count, where they can be read."""
    found: dict[str, CorpusFiles] = {}
    tests, own = config.data.test, own_test_sets(run)
    for name, files in {**tests, **own}.items():
        paths, others = ([one.src_file.resolve(), one.tgt_file.resolve()] for one in (files, tests.get(name, files)))
        if paths != others:
            log.warning(
                f"{name} is a test set of {run.path}, too, and that one is scored; rename this run's in data.test"
            )
        try:
            corpus_test_set(files, config.source)
            found[name] = files
        except DataError as error:
            log.warning(f"{name} is not scored before and after: {error}")
    return found


def _check_replayed(config: Config, run: RunFolder) -> None:
    """`DataError` if a corpus of `data.replay` is missing, or has other text than when the run was trained."""
    replayed = [files for files in config.data.train if files.replayed]
    record = read_record(run) if replayed else None
    known = {corpus.src.path: corpus for corpus in (record.train if record else ())}
    for files in replayed:
        remedy = "restore it, or leave data.replay out and add text of that kind to data.train with a weight"
        try:
            now = recorded_corpus(files, config.source)
        except DataError as error:
            raise DataError(f"data.replay: a corpus to replay cannot be read: {error}; {remedy}") from None
        then = known.get(str(files.src_file))
        if then is not None and now != then:
            names = " and ".join(dict.fromkeys((str(files.src_file), str(files.tgt_file))))
            raise DataError(f"data.replay: {names} have changed since {run.path} was trained on them; {remedy}")
