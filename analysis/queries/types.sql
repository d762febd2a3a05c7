-- What each file type gives: the base of the advice on exclusions. Duplicates are looked for among
-- files of the same type, zeros count as saved.
WITH per_chunk AS (
    SELECT f.type, any_value(c.length_bytes) AS length,
           any_value(stored(c.length_bytes, c.compressed_bytes)) AS stored,
           count(*) FILTER (f.first_overall) AS firsts
    FROM chunks AS c JOIN (SELECT file, type, first_overall FROM files) AS f USING (file)
    GROUP BY f.type, c.fp_high, c.fp_low
), sums AS (
    SELECT type, moments(length, length * firsts) AS u,
           moments_measured(stored, length, length * firsts) AS s
    FROM per_chunk GROUP BY type
), totals AS (
    SELECT type, count(*) AS files, sum(length_bytes) AS data_bytes,
           coalesce(sum(chunk_bytes) FILTER (first_overall), 0) AS firsts
    FROM files_in_chunks GROUP BY type
)
SELECT t.type, files, data_bytes::DOUBLE AS data_bytes,
       estimate(u, firsts) AS unique_bytes, estimate_measured(s, u, firsts) AS stored_bytes,
       coalesce(s.n, 0) AS sampled_chunks
FROM totals AS t LEFT JOIN sums USING (type)
WHERE data_bytes > 0
ORDER BY data_bytes DESC, t.type;
