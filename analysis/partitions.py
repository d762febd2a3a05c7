"""Assigns files to partitions, by type and by place in the tree (seed 003, 3.2)."""

from analysis.database import EVERYTHING, Database

TYPE_SHARE_MIN = 0.01
"""Types with a smaller share of the data are combined."""

PATH_SHARE_MAX = 0.10
"""Subtrees with a larger share of the data are split further, as in the paper."""

DEPTH_MAX = 40


def assign_partitions(database: Database) -> None:
    """Fill the table ``file_partitions``."""
    database.execute(
        """
        CREATE TEMPORARY TABLE assigned AS
        SELECT dataset, file, length_bytes, type,
               string_split(directory, '/') AS parts, NULL::VARCHAR AS by_path FROM files
        """
    )
    _divide_tree(database)
    database.execute(
        """
        INSERT INTO file_partitions
        WITH types AS (
            SELECT dataset, type, sum(length_bytes) AS data_bytes,
                   sum(sum(length_bytes)) OVER (PARTITION BY dataset) AS dataset_bytes
            FROM assigned GROUP BY dataset, type
        )
        SELECT file,
               CASE WHEN data_bytes >= ? * dataset_bytes THEN 'type ' || type ELSE 'others' END,
               coalesce(by_path, '')
        FROM assigned JOIN types USING (dataset, type)
        """,
        [TYPE_SHARE_MIN],
    )
    database.execute("DROP TABLE assigned")


def _divide_tree(database: Database) -> None:
    """From the root downwards: a subtree that is small enough becomes a partition.

    The files directly in a split directory are a separate partition.
    """
    for depth in range(1, DEPTH_MAX + 1):
        database.execute(
            """
            UPDATE assigned SET by_path = prefix
            FROM (
                SELECT dataset, array_to_string(parts[1:$depth], '/') AS prefix,
                       sum(length_bytes) AS data_bytes, bool_and(len(parts) < $depth) AS leaf
                FROM assigned WHERE by_path IS NULL GROUP BY dataset, prefix
            ) AS subtree
            JOIN (SELECT dataset, sum(length_bytes) AS dataset_bytes
                  FROM assigned GROUP BY dataset) AS whole USING (dataset)
            WHERE assigned.dataset = subtree.dataset AND assigned.by_path IS NULL
              AND array_to_string(assigned.parts[1:$depth], '/') = prefix
              AND (subtree.data_bytes <= $share * dataset_bytes OR leaf OR $last)
            """.replace("$depth", str(depth))
            .replace("$share", str(PATH_SHARE_MAX))
            .replace("$last", str(depth == DEPTH_MAX))
        )
        if not database.execute("SELECT 1 FROM assigned WHERE by_path IS NULL LIMIT 1"):
            return


def assign_groups(database: Database) -> None:
    """Fill ``dataset_groups``: all datasets, and those whose labels share a part.

    In a label such as ``berlin/home``, the part before the slash is the place, and the part after
    it is the workload, as in table 4 of the paper.
    """
    rows = database.execute("SELECT dataset, label FROM datasets ORDER BY dataset")
    groups: dict[str, list[int]] = {EVERYTHING: [number for number, _ in rows]}
    for number, label in rows:
        place, slash, workload = str(label).partition("/")
        if slash:
            groups.setdefault(f"all in {place}", []).append(number)
            groups.setdefault(f"all {workload}", []).append(number)
    for name, members in groups.items():
        if len(members) > 1:
            for number in members:
                database.execute("INSERT INTO dataset_groups VALUES (?, ?)", [name, number])
