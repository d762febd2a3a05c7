-- Table 2: space saved by single-instancing whole files, by fixed blocks and by content-defined
-- chunks, as a fraction of the data; no compression. Deviations are those of the chunk level.
WITH whole AS (
    SELECT label AS dataset,
           sum(length_bytes) AS data_bytes,
           sum(length_bytes) FILTER (first_in_dataset) AS unique_bytes
    FROM files JOIN datasets USING (dataset) GROUP BY label
    UNION ALL
    SELECT getvariable('everything'), sum(length_bytes),
           sum(length_bytes) FILTER (first_overall)
    FROM files HAVING count(*) > 0
)
SELECT w.dataset,
       w.data_bytes::DOUBLE AS data_bytes,
       1 - w.unique_bytes / w.data_bytes AS whole_file,
       1 - fixed.unique_bytes / w.data_bytes AS fixed_block,
       1 - c.unique_bytes / w.data_bytes AS chunk,
       c.unique_deviation / w.data_bytes AS chunk_deviation
FROM whole AS w
JOIN savings AS c ON c.dataset = w.dataset AND c.chunking = getvariable('default_chunking')
LEFT JOIN savings AS fixed ON fixed.dataset = w.dataset AND fixed.chunking = 'fixed-64k'
WHERE w.data_bytes > 0
ORDER BY w.dataset = getvariable('everything'), w.dataset;
