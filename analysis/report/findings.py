"""One sentence for each table and figure: its meaning for this data."""

from collections.abc import Sequence

from analysis.collection.chunkings import BASIC_SUFFIX, DEFAULT, FIXED
from analysis.database import EVERYTHING
from analysis.figures import (
    CompressibilityRow,
    DuplicateShareRow,
    DuplicationRow,
    FrequencyBasedRow,
    FrequencyRow,
)
from analysis.study import Study
from dedupd_core.units import format_size


def findings(study: Study) -> dict[str, str]:
    """Return sentences by the name of the query, only for queries with a result."""
    written = {
        "table1_datasets": _datasets(study),
        "table2_whole_file_and_chunks": _whole_file(study),
        "figure1_duplicate_share": _duplicate_share(study.figure1_duplicate_share),
        "figure2_chunk_size": _chunk_size(study),
        "figure3_compressibility": _compressibility(study.figure3_compressibility),
        "figure4_duplication": _duplication(study.figure4_duplication),
        "table3_partitions": _partitions(study),
        "table4_across": _across(study),
        "figure7_chunk_sizes": _chunk_sizes(study),
        "table7_regression": _regression(study),
        "frequency": _frequency(study.frequency),
        "frequency_based": _frequency_based(study.frequency_based),
        "types": _types(study),
        "ages": _ages(study),
    }
    return {name: text for name, text in written.items() if text}


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"


def _datasets(study: Study) -> str:
    rows = study.table1_datasets
    data = sum(row.data_bytes for row in rows)
    files = sum(row.files for row in rows)
    text = f"{format_size(data)} in {files:,} files were read"
    holes = sum(row.hole_bytes for row in rows)
    if holes:
        text += f"; holes of another {format_size(holes)} use no space and are not counted"
    unread = sum(row.unread_files for row in rows)
    if unread:
        text += f"; {unread:,} files could not be read and are not included"
    return text + "."


def _whole_file(study: Study) -> str:
    row = next((r for r in study.table2_whole_file_and_chunks if r.dataset == EVERYTHING), None)
    if row is None:
        return ""
    if row.chunk < 0.001:
        return "Neither whole files nor chunks have a notable number of duplicates."
    share = row.whole_file / row.chunk
    verdict = (
        "most duplicates are within files that are not identical, so chunks are needed"
        if share < 0.5
        else "identical files account for most of it, and chunks for the rest"
        if share < 0.9
        else "nearly all duplicates are identical files"
    )
    return (
        f"Whole-file deduplication saves {row.whole_file:.1%}, chunks save {row.chunk:.1%}:"
        f" {verdict}."
    )


def _duplicate_share(rows: Sequence[DuplicateShareRow]) -> str:
    duplicate = sum(row.duplicate_bytes for row in rows)
    if not duplicate:
        return "No chunk occurs in more than one file."
    partly = sum(row.duplicate_bytes for row in rows if row.share_percent < 100)
    middle = sum(row.duplicate_bytes for row in rows if 40 <= row.share_percent < 95)
    return (
        f"{partly / duplicate:.0%} of the duplicate bytes are in partly duplicate files,"
        f" {middle / duplicate:.0%} in files with 40% to 95% duplicate chunks."
    )


def _chunk_size(study: Study) -> str:
    default, fine = study.savings(DEFAULT), study.savings("4k")
    if default is None:
        return ""
    text = f"With {DEFAULT} chunks, deduplication alone saves {default.saved:.1%}"
    if study.collection.compressed:
        text += f" and {default.saved_compressed:.1%} with compression"
    if fine is not None:
        text += f"; 4k chunks save {fine.saved:.1%}"
        if study.collection.compressed:
            lead = default.saved_compressed - fine.saved_compressed
            text += f" and {fine.saved_compressed:.1%}"
            text += (
                ", so large chunks with compression are as good or better"
                if lead > -0.005
                else f", so large chunks save {_points(-lead)} less"
            )
    fixed = study.savings(FIXED)
    if fixed is not None:
        lead = default.saved - fixed.saved
        text += f"; fixed blocks of the same size save {_points(abs(lead))} "
        text += "less" if lead >= 0 else "more"
    return text + "."


def saved_by_best_half(rows: Sequence[CompressibilityRow]) -> float:
    """Return the share of the compression savings that come from the best half of the chunks."""
    half = sum(row.chunks for row in rows) / 2
    total = sum(row.saved_bytes for row in rows)
    chunks = saved = 0.0
    for row in sorted(rows, key=lambda row: row.ratio_percent):
        part = min(1.0, (half - chunks) / row.chunks)
        if part <= 0:
            break
        chunks += part * row.chunks
        saved += part * row.saved_bytes
    return saved / total if total else 0.0


def _compressibility(rows: Sequence[CompressibilityRow]) -> str:
    chunks = sum(row.chunks for row in rows)
    data = sum(row.data_bytes for row in rows)
    if not data:
        return ""
    stuck = [row for row in rows if row.ratio_percent > 95]
    best = saved_by_best_half(rows)
    return (
        f"The best compressible half of the chunks accounts for {best:.0%} of the compression"
        f" savings. {sum(r.chunks for r in stuck) / chunks:.0%} of the chunks"
        f" ({sum(r.data_bytes for r in stuck) / data:.0%} of the bytes) shrink by less than 5% and"
        " are stored uncompressed."
    )


def _duplication(rows: Sequence[DuplicationRow]) -> str:
    chunks = sum(row.chunks for row in rows)
    if not chunks:
        return ""
    unique = sum(row.chunks for row in rows if row.copies_min == 1)
    duplicate = sum(row.occurring_bytes - row.distinct_bytes for row in rows)
    middle = sum(
        row.occurring_bytes - row.distinct_bytes for row in rows if 2 <= row.copies_min < 32
    )
    text = f"{unique / chunks:.0%} of the distinct chunks occur once"
    if duplicate:
        few = middle / duplicate
        text += f"; chunks with 2 to 31 copies account for {few:.0%} of the savings"
        text += (
            ": an index of only the most frequent chunks is not enough"
            if few > 0.5
            else f", and the few with more copies for {1 - few:.0%}"
        )
    return text + "."


def _partitions(study: Study) -> str:
    if study.partition_losses is None:
        return ""
    by_type, by_path = study.partition_losses
    better = "type" if by_type <= by_path else "path"
    return (
        f"Partitions by file type lose {_points(by_type)}, by path {_points(by_path)}: splitting"
        f" the index by {better} is the better way to limit its memory."
    )


def _across(study: Study) -> str:
    row = next((row for row in study.table4_across if row.name == EVERYTHING), None)
    if row is None:
        return ""
    verdict = (
        "each dataset can be deduplicated separately"
        if row.benefit < 0.03
        else "it is worthwhile to put them on one volume"
    )
    return (
        f"Deduplication across the datasets saves another {row.benefit:.1%} of the data: {verdict}."
    )


def _chunk_sizes(study: Study) -> str:
    default = study.collection.default_chunking
    regression, basic = study.savings(default), study.savings(default + BASIC_SUFFIX)
    rows = study.figure7_chunk_sizes
    if regression is None or basic is None or not rows:
        return ""

    def at_maximum(name: str) -> float:
        of = [row for row in rows if row.chunking == name]
        largest = max((row.size_bytes for row in rows), default=0)
        total = sum(row.chunks for row in of)
        return sum(row.chunks for row in of if row.size_bytes == largest) / total if total else 0.0

    return (
        f"Basic chunking ends {at_maximum(default + BASIC_SUFFIX):.1%} of its chunks at the"
        f" largest size, regression chunking {at_maximum(default):.1%}."
    )


def _regression(study: Study) -> str:
    default = study.collection.default_chunking
    regression, basic = study.savings(default), study.savings(default + BASIC_SUFFIX)
    if regression is None or basic is None:
        return ""
    text = f"Regression saves {regression.saved:.2%} of all data, basic chunking {basic.saved:.2%}"
    gains = [(row.benefit, row.type) for row in study.table7_regression if row.benefit is not None]
    if gains:
        gain, kind = max(gains)
        if gain > 0.01:
            text += f"; {kind or 'files without a type'} gain most, {gain:.0%} more savings"
    return text + "."


def _frequency(rows: Sequence[FrequencyRow]) -> str:
    def share(name: str) -> float | None:
        of = [row for row in rows if row.chunking == name]
        total = sum(row.chunks for row in of)
        return sum(row.chunks for row in of if row.copies_min > 1) / total if total else None

    coarse, fine = share(DEFAULT), share("4k")
    if coarse is None or fine is None:
        return ""
    return f"{coarse:.1%} of the 64k chunks and {fine:.1%} of the 4k chunks occur more than once."


def _frequency_based(rows: Sequence[FrequencyBasedRow]) -> str:
    of = {row.method: row for row in rows}
    if not {"default", "frequency-based", "fine"} <= of.keys() or not of["default"].data_bytes:
        return ""
    data = of["default"].data_bytes
    gain = (of["default"].unique_bytes - of["frequency-based"].unique_bytes) / data
    fine = (of["default"].unique_bytes - of["fine"].unique_bytes) / data
    ratio = of["frequency-based"].chunks / of["fine"].chunks
    return (
        f"Splitting frequent segments from large chunks would save at least {_points(gain)} more;"
        f" small chunks everywhere, {_points(fine)} with {1 / ratio:.1f} times as many chunks."
    )


def _types(study: Study) -> str:
    rows = [row for row in study.types if row.data_bytes > 0]
    if not rows:
        return ""
    total = sum(row.data_bytes for row in rows)
    best = max(rows, key=lambda row: row.data_bytes - row.stored_bytes)
    saved = sum(row.data_bytes - row.stored_bytes for row in rows)
    if saved < 0.001 * total:
        return "No file type has notable savings."
    part = (best.data_bytes - best.stored_bytes) / saved
    name = f"Files of type {best.type}" if best.type else "Files without a type"
    share = best.data_bytes / total
    return f"{name} have {share:.0%} of the data and account for {part:.0%} of the savings."


def _ages(study: Study) -> str:
    total = sum(row.data_bytes for row in study.table1_datasets)
    within = {row.days_max: row.data_bytes / total for row in study.ages}
    three, month = within.get(3, 0.0), within.get(30, 0.0)
    older = "nothing is older" if month > 0.9995 else f"{1 - month:.1%} are older"
    return (
        f"{three:.1%} of the data changed in the 3 days before the collection, {month:.1%} in the"
        f" last 30; {older}. Copying counts as a change."
    )
