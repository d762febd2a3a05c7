-- Table 3: savings when chunks are looked for in the whole dataset, only among files of the same
-- type, and only in the same part of the directory tree. No compression. Types with less than 1 %
-- of the data share a partition; parts of the tree are subtrees of at most 10 % of it.
WITH per_chunk AS (
    SELECT c.dataset, any_value(c.length_bytes) AS length,
           count(DISTINCT p.by_type) AS types,
           count(DISTINCT p.by_path) AS paths,
           count(*) FILTER (f.first_in_dataset) AS firsts
    FROM chunks AS c
    JOIN file_partitions AS p USING (file)
    JOIN (SELECT file, first_in_dataset FROM files) AS f USING (file)
    GROUP BY c.dataset, c.fp_high, c.fp_low
), sums AS (
    SELECT dataset,
           moments(length, length * firsts) AS overall,
           moments(length * types, length * firsts) AS by_type,
           moments(length * paths, length * firsts) AS by_path
    FROM per_chunk GROUP BY dataset
), partitions AS (
    SELECT f.dataset, count(DISTINCT by_type) AS types, count(DISTINCT by_path) AS paths
    FROM files AS f JOIN file_partitions USING (file) GROUP BY f.dataset
), totals AS (
    SELECT dataset, sum(length_bytes) AS data_bytes,
           sum(chunk_bytes) FILTER (first_in_dataset) AS firsts
    FROM files_in_chunks GROUP BY dataset
)
SELECT label AS dataset, data_bytes::DOUBLE AS data_bytes,
       1 - estimate(overall, firsts) / data_bytes AS overall,
       1 - estimate(by_type, firsts) / data_bytes AS by_type,
       1 - estimate(by_path, firsts) / data_bytes AS by_path,
       types AS type_partitions, paths AS path_partitions
FROM sums JOIN totals USING (dataset) JOIN partitions USING (dataset) JOIN datasets USING (dataset)
WHERE data_bytes > 0
ORDER BY dataset;
