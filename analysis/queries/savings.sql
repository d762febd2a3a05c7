-- Savings of the chunking that the view chunks shows, for every dataset and for all together: what
-- table 2 and figure 2 are made of. Zeros and holes take no space in a store.
INSERT INTO savings
WITH per_dataset AS (
    SELECT dataset, fp_high, fp_low,
           count(*) AS copies,
           any_value(length_bytes) AS length,
           any_value(stored(length_bytes, compressed_bytes)) AS stored,
           count(*) FILTER (first_in_dataset) AS first_in_dataset,
           count(*) FILTER (first_overall) AS first_overall
    FROM chunks JOIN (SELECT file, first_in_dataset, first_overall FROM files) USING (file)
    GROUP BY dataset, fp_high, fp_low
), overall AS (
    SELECT sum(copies) AS copies, any_value(length) AS length, any_value(stored) AS stored,
           sum(first_overall) AS first_overall
    FROM per_dataset GROUP BY fp_high, fp_low
), totals AS (
    SELECT dataset, sum(length_bytes) AS data_bytes,
           coalesce(sum(chunk_bytes) FILTER (first_in_dataset), 0) AS first_in_dataset,
           coalesce(sum(chunk_bytes) FILTER (first_overall), 0) AS first_overall
    FROM files_in_chunks GROUP BY dataset
), sums AS (
    SELECT dataset, sum(copies) AS copies,
           moments(length, length * first_in_dataset) AS u,
           moments_measured(stored, length, length * first_in_dataset) AS s
    FROM per_dataset GROUP BY dataset
), sums_overall AS (
    SELECT sum(copies) AS copies,
           moments(length, length * first_overall) AS u,
           moments_measured(stored, length, length * first_overall) AS s
    FROM overall
)
SELECT getvariable('chunking'), label, data_bytes,
       coalesce(scaled(copies), 0), coalesce(scaled(u.n), 0),
       estimate(u, first_in_dataset), deviation(u),
       estimate_measured(s, u, first_in_dataset), deviation_measured(s, u), coalesce(s.n, 0)
FROM totals JOIN datasets USING (dataset) LEFT JOIN sums USING (dataset)
UNION ALL
SELECT getvariable('chunking'), getvariable('everything'), t.data_bytes,
       coalesce(scaled(copies), 0), coalesce(scaled(u.n), 0),
       estimate(u, t.first_overall), deviation(u),
       estimate_measured(s, u, t.first_overall), deviation_measured(s, u), coalesce(s.n, 0)
FROM sums_overall,
     (SELECT sum(data_bytes) AS data_bytes, sum(first_overall) AS first_overall FROM totals) AS t
WHERE t.data_bytes IS NOT NULL;
